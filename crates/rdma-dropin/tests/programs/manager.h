/* Ends of librdmacm in this process, and cases that the argument names, for programs that include this file. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static struct rdma_event_channel *channel;

static struct sockaddr *localhost(uint16_t port)
{
	static struct sockaddr_in address;
	address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return (struct sockaddr *)&address;
}

/* Waits for the next event, which has this type. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type) {
		fprintf(stderr, "expected %s, got %s, status %d\n", rdma_event_str(type),
			rdma_event_str(event->event), event->status);
		exit(1);
	}
	return event;
}

static void pass(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = expect(type);
	CHECK(event->status == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static int readable(void)
{
	struct pollfd polled = { .fd = channel->fd, .events = POLLIN };
	return poll(&polled, 1, 0);
}

static struct rdma_cm_id *listener(enum rdma_port_space space)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, "listener", space) == 0);
	CHECK(rdma_bind_addr(id, localhost(0)) == 0);
	CHECK(ntohs(rdma_get_src_port(id)) != 0);
	CHECK(rdma_listen(id, 8) == 0);
	return id;
}

/* Returns an ID whose route to a port is resolved. */
static struct rdma_cm_id *resolved(uint16_t port, enum rdma_port_space space)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, "client", space) == 0);
	CHECK(rdma_resolve_addr(id, NULL, localhost(port), 1000) == 0);
	CHECK(readable() == 1);
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs && id->pd && id->port_num == 1);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(id->route.num_paths == 1 && id->route.path_rec->mtu);
	CHECK(ntohs(rdma_get_dst_port(id)) == port);
	return id;
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = id->qp_type };
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel);
}

static void end(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* A case of a program. */
struct test_case {
	const char *name;
	void (*run)(void);
};

/* Runs the case of this name. Returns the exit status. */
static int run_case(const struct test_case *cases, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(name, cases[i].name) == 0) {
			cases[i].run();
			rdma_destroy_event_channel(channel);
			return 0;
		}
	}
	return 2;
}
