/* Options and signals of librdmacm, with both ends in this process. The argument names the case. */
#include "manager.h"

#include <netinet/in.h>
#include <sys/resource.h>

static int set(struct rdma_cm_id *id, int option, int value)
{
	uint8_t byte = value;
	int is_byte = option == RDMA_OPTION_ID_TOS || option == RDMA_OPTION_ID_ACK_TIMEOUT;
	return rdma_set_option(id, RDMA_OPTION_ID, option, is_byte ? (void *)&byte : (void *)&value,
		is_byte ? sizeof(byte) : sizeof(value));
}

/*
 * Both ends send with the ACK timeout that the active end chose, and with its traffic class. `own` is the traffic class
 * of the passive end, or negative if it has none.
 */
static void path_with(int own)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP), *ends[2];
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	uint16_t port = ntohs(rdma_get_src_port(listening));
	if (own >= 0)
		CHECK(set(listening, RDMA_OPTION_ID_TOS, own) == 0);
	CHECK(rdma_create_id(channel, &ends[0], NULL, RDMA_PS_TCP) == 0);
	CHECK(set(ends[0], RDMA_OPTION_ID_ACK_TIMEOUT, 32) == -1 && errno == EINVAL);
	CHECK(set(ends[0], RDMA_OPTION_ID_ACK_TIMEOUT, 17) == 0);
	CHECK(set(ends[0], RDMA_OPTION_ID_TOS, 0x68) == 0);
	CHECK(rdma_resolve_addr(ends[0], NULL, localhost(port), 1000) == 0);
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(ends[0], 1000) == 0);
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	create_qp(ends[0]);
	CHECK(rdma_connect(ends[0], &param) == 0);
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	ends[1] = event->id;
	CHECK(ends[1]->route.path_rec->traffic_class == (own < 0 ? 0x68 : own));
	CHECK(rdma_ack_cm_event(event) == 0);
	create_qp(ends[1]);
	CHECK(rdma_accept(ends[1], &param) == 0);
	pass(RDMA_CM_EVENT_ESTABLISHED);
	pass(RDMA_CM_EVENT_ESTABLISHED);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;
		CHECK(ibv_query_qp(ends[i]->qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT, &init) == 0);
		int class = i == 1 && own >= 0 ? own : 0x68;
		CHECK(attr.timeout == 17 && attr.ah_attr.grh.traffic_class == class);
		CHECK(ends[i]->route.path_rec->traffic_class == class);
		end(ends[i]);
	}
	end(listening);
}

static void path(void)
{
	path_with(-1);
	path_with(0x20);
	path_with(0);
}

/* Returns an ID that is bound to an address, or NULL if its port is in use. */
static struct rdma_cm_id *bound_at(struct sockaddr *address, int is_shared)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(set(id, RDMA_OPTION_ID_REUSEADDR, is_shared) == 0);
	if (rdma_bind_addr(id, address) == 0)
		return id;
	CHECK(errno == EADDRINUSE);
	CHECK(rdma_destroy_id(id) == 0);
	return NULL;
}

static struct rdma_cm_id *bound(uint16_t port, int is_shared)
{
	return bound_at(localhost(port), is_shared);
}

/* Returns the status of a request to a port of 127.0.0.1 after its rejection, or 0. */
static int status(uint16_t port)
{
	struct rdma_cm_id *client = resolved(port, RDMA_PS_TCP);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	int result = 0;
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event == RDMA_CM_EVENT_REJECTED) {
		result = event->status;
		CHECK(rdma_ack_cm_event(event) == 0);
	} else {
		struct rdma_cm_id *id = event->id;
		CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(rdma_ack_cm_event(event) == 0);
		CHECK(rdma_reject(id, NULL, 0) == 0);
		end(id);
		event = expect(RDMA_CM_EVENT_REJECTED);
		CHECK(rdma_ack_cm_event(event) == 0);
	}
	end(client);
	return result;
}

/* IDs with the option share a port. Only one of them listens, before the others are bound. */
static void shared_port(void)
{
	struct rdma_cm_id *first = bound(0, 1), *second;
	uint16_t port = ntohs(rdma_get_src_port(first));
	CHECK(!bound(port, 0));
	CHECK((second = bound(port, 1)));
	CHECK(rdma_listen(first, 1) == -1 && errno == EADDRINUSE);
	end(second);
	/* The ID has kept its port, and listens once it is the only owner. */
	CHECK(ntohs(rdma_get_src_port(first)) == port && !bound(port, 0));
	CHECK(rdma_listen(first, 1) == 0);
	CHECK(status(port) == 0);
	end(first);

	CHECK((first = bound(port, 1)));
	CHECK(rdma_listen(first, 1) == 0);
	CHECK((second = bound(port, 1)));
	/* The second ID requests a connection from this port. */
	CHECK(rdma_resolve_addr(second, NULL, localhost(port), 1000) == 0);
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(ntohs(rdma_get_src_port(second)) == port);
	CHECK(set(second, RDMA_OPTION_ID_REUSEADDR, 0) == -1 && errno == EINVAL);
	end(second);
	end(first);
	/* The option can be set, but not removed, after the port is bound. */
	CHECK((first = bound(port, 0)));
	CHECK(!bound(port, 1));
	CHECK(set(first, RDMA_OPTION_ID_REUSEADDR, 0) == -1 && errno == EINVAL);
	CHECK(set(first, RDMA_OPTION_ID_REUSEADDR, 1) == 0);
	CHECK((second = bound(port, 1)));
	end(second);
	CHECK(rdma_listen(first, 1) == 0);
	CHECK(set(first, RDMA_OPTION_ID_REUSEADDR, 1) == -1 && errno == EINVAL);
	end(first);
}

/* An ID that listens on all devices, of which one has another owner of its port, listens once it is the only owner. */
static void two_devices(void)
{
	struct sockaddr_in all = { .sin_family = AF_INET };
	struct sockaddr_in6 of_last = { .sin6_family = AF_INET6 };
	struct rdma_cm_id *first, *second;
	struct ibv_context **devices;
	struct rlimit usual;
	union ibv_gid gid;
	int count;
	CHECK((devices = rdma_get_devices(&count)) && count == 2);
	CHECK(ibv_query_gid(devices[1], 1, 0, &gid) == 0);
	rdma_free_devices(devices);
	CHECK((first = bound_at((struct sockaddr *)&all, 1)));
	/* The GID is an address of the last device only. */
	memcpy(&of_last.sin6_addr, gid.raw, sizeof(gid.raw));
	of_last.sin6_port = rdma_get_src_port(first);
	CHECK((second = bound_at((struct sockaddr *)&of_last, 1)));
	CHECK(rdma_listen(first, 1) == -1 && errno == EADDRINUSE);
	CHECK(status(ntohs(of_last.sin6_port)) == 8);
	/* The next call fails, too, and loses the port of the first device: it cannot open a file. */
	CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
	CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, usual.rlim_max }) == 0);
	CHECK(rdma_listen(first, 1) == -1 && errno == EADDRINUSE);
	CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
	end(second);
	CHECK(rdma_listen(first, 1) == 0);
	CHECK(rdma_listen(first, 1) == -1 && errno == EINVAL);
	CHECK(status(ntohs(of_last.sin6_port)) == 0);
	end(first);
}

/* A listener with the option rejects requests to addresses of the other IP version. */
static void one_ip_version(void)
{
	for (int is_one = 0; is_one < 2; is_one++) {
		struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
		struct rdma_cm_id *id;
		CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
		CHECK(set(id, RDMA_OPTION_ID_AFONLY, !is_one) == 0);
		CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == 0);
		CHECK(set(id, RDMA_OPTION_ID_AFONLY, is_one) == 0);
		CHECK(rdma_listen(id, 1) == 0);
		CHECK(set(id, RDMA_OPTION_ID_AFONLY, is_one) == -1 && errno == EINVAL);
		CHECK(status(ntohs(rdma_get_src_port(id))) == (is_one ? 8 : 0));
		end(id);
	}
}

static volatile sig_atomic_t signals;
static volatile int returned;

static void count(int number)
{
	(void)number;
	signals++;
}

static void *get_event(void *result)
{
	struct rdma_cm_event *event;
	*(int *)result = rdma_get_cm_event(channel, &event) == 0 ? 0 : errno;
	if (*(int *)result == 0)
		CHECK(rdma_ack_cm_event(event) == 0);
	returned = 1;
	return NULL;
}

/* Returns the error of a call that waits for an event while its thread gets signals. */
static int interrupted(int flags)
{
	struct sigaction action = { .sa_handler = count, .sa_flags = flags };
	struct rdma_cm_id *id;
	pthread_t thread;
	int result = -1;
	returned = 0;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, get_event, &result) == 0);
	/* Without SA_RESTART, one of the signals arrives during the call. */
	for (int i = 0; !returned && (i < 20 || !(flags & SA_RESTART)); i++) {
		int before = signals;
		/* The thread may have ended since. */
		int killed = pthread_kill(thread, SIGUSR1);
		CHECK(killed == 0 || killed == ESRCH);
		while (signals == before && !returned)
			usleep(100);
		usleep(10000);
	}
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, localhost(9), 1000) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	end(id);
	return result;
}

/* A call that waits is restarted like a system call of the kernel's rdma_cm. */
static void restart(void)
{
	CHECK(interrupted(0) == EINTR);
	CHECK(interrupted(SA_RESTART) == 0);
}

static const struct test_case cases[] = {
	{ "path", path }, { "shared port", shared_port },
	{ "two devices", two_devices }, { "one IP version", one_ip_version }, { "restart", restart },
};

int main(int argc, char **argv)
{
	/* A missing event ends the program. */
	alarm(300);
	CHECK((channel = rdma_create_event_channel()));
	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argv[1]);
}
