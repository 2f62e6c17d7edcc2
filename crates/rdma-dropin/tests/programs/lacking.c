/* Functions that the librdmacm.so.1 lacks. It needs no header. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

int rsocket(int domain, int type, int protocol);
long rrecv(int socket, void *buffer, unsigned long length, int flags);
int rdma_join_multicast(void *id, void *address, void *context);

static void print(long returned)
{
	printf("%ld %s\n", returned, strerror(errno));
}

int main(void)
{
	char buffer[8];
	print(rsocket(2, 1, 0));
	print(rsocket(2, 1, 0));
	print(rrecv(0, buffer, sizeof(buffer), 0));
	print(rdma_join_multicast(NULL, NULL, NULL));
	return 0;
}
