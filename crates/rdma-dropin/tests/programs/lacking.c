/* Functions and addresses that the librdmacm.so.1 lacks. It needs no header. The arguments name further functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int rsocket(int domain, int type, int protocol);
long rrecv(int socket, void *buffer, unsigned long length, int flags);
int rdma_resolve_addrinfo(void *id, const char *node, const char *service, const void *hints);

int rdma_create_id(void *channel, void **id, void *context, int space);
int rdma_destroy_id(void *id);
int rdma_bind_addr(void *id, struct sockaddr *address);
int rdma_resolve_addr(void *id, struct sockaddr *source, struct sockaddr *to, int timeout);
int rdma_getaddrinfo(const char *node, const char *service, const void *hints, void **res);

/* RDMA_PS_TCP, and RAI_FAMILY, with which the hints begin. */
enum { TCP = 0x106, FAMILY = 8 };

static void print(long returned)
{
	printf("%ld %s\n", returned, strerror(errno));
}

/* Calls a function that reads no argument. Its result is an int, or a number whose lower half is the same. */
static void call(const char *name)
{
	int (*function)(void);
	*(void **)&function = dlsym(RTLD_DEFAULT, name);
	errno = 0;
	print(function ? function() : 0);
}

int main(int count, char **names)
{
	char buffer[8];
	print(rsocket(2, 1, 0));
	print(rsocket(2, 1, 0));
	print(rrecv(0, buffer, sizeof(buffer), 0));
	print(rdma_resolve_addrinfo(NULL, NULL, NULL, NULL));
	for (int index = 1; index < count; index++)
		call(names[index]);

	struct sockaddr_storage address = { .ss_family = AF_IB };
	struct sockaddr *infiniband = (struct sockaddr *)&address;
	void *id, *found;
	if (rdma_create_id(NULL, &id, NULL, TCP))
		return 1;
	print(rdma_bind_addr(id, infiniband));
	print(rdma_resolve_addr(id, NULL, infiniband, 1000));
	int hints[32] = { FAMILY, AF_IB };
	print(rdma_getaddrinfo("localhost", "7471", hints, &found));
	if (rdma_destroy_id(id))
		return 1;
	return 0;
}
