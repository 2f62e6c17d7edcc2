/* Functions that the librdmacm.so.1 lacks. It needs no header. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

int rsocket(int domain, int type, int protocol);
long rrecv(int socket, void *buffer, unsigned long length, int flags);
int rdma_resolve_addrinfo(void *id, const char *node, const char *service, const void *hints);

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
	print(rdma_resolve_addrinfo(NULL, NULL, NULL, NULL));
	return 0;
}
