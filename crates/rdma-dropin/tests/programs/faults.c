/* Prints how it sees a fault of the first device, or exits while it posts. The argument states which. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "../../../test-support/quiet_device/verbs.h"

enum { INIT = 1, RTR = 2, RTS = 3 };
enum { RC = 2, MTU_1024 = 3, SEND_WITH_IMM = 3 };
/* The bits of the attributes that a transition needs. */
enum { TO_INIT = 1 | 8 | 16 | 32, TO_RTR = 1 | 128 | 256 | 4096 | 1 << 15 | 1 << 17 | 1 << 20 };
enum { TO_RTS = 1 | 512 | 1024 | 2048 | 1 << 13 | 1 << 16 };
enum { EVENT_PORT_ACTIVE = 9, EVENT_PORT_ERR = 10, EVENT_GID_CHANGE = 18 };
enum { PORT = 1, MESSAGES = 64, GIDS = 16 };

union gid {
	uint8_t raw[16];
	uint64_t aligned[2];
};

struct capabilities {
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data;
};

struct init_attributes {
	void *qp_context;
	struct ibv_cq *send_cq, *recv_cq;
	void *srq;
	struct capabilities cap;
	int qp_type, sq_sig_all;
};

struct address {
	union gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct attributes {
	int state, current_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned int access_flags;
	struct capabilities cap;
	struct address address, alternate;
	uint16_t pkey_index, alternate_pkey_index;
	uint8_t sqd_notify, draining, max_rd_atomic, max_dest_rd_atomic;
	uint8_t min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alternate_port_num, alternate_timeout;
	uint32_t rate_limit;
};

struct gid_entry {
	union gid gid;
	uint32_t index, port, type, interface;
};

struct event {
	union {
		void *object;
		int port;
	};
	int type;
};

void **ibv_get_device_list(int *count);
struct ibv_context *ibv_open_device(void *device);
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *own, void *channel, int vector);
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct init_attributes *attributes);
int ibv_modify_qp(struct ibv_qp *qp, struct attributes *attributes, int mask);
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union gid *gid);
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct gid_entry *table, size_t room, uint32_t flags,
			     size_t entry_size);
int ibv_get_async_event(struct ibv_context *context, struct event *event);
void ibv_ack_async_event(struct event *event);

static void check(int works, const char *name)
{
	if (works)
		return;
	printf("%s: %s\n", name, strerror(errno));
	exit(1);
}

static void create_queues(struct ibv_context *context)
{
	for (int call = 1; call <= 4; call++) {
		errno = 0;
		void *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
		printf("call %d: %s\n", call, cq ? "created" : strerror(errno));
	}
}

static struct ibv_qp *create_qp(struct ibv_context *context)
{
	struct init_attributes attributes = { .cap = { MESSAGES, MESSAGES, 1, 1, 0 }, .qp_type = RC, .sq_sig_all = 1 };
	attributes.send_cq = ibv_create_cq(context, MESSAGES, NULL, NULL, 0);
	attributes.recv_cq = ibv_create_cq(context, MESSAGES, NULL, NULL, 0);
	struct ibv_qp *qp = ibv_create_qp(ibv_alloc_pd(context), &attributes);
	check(qp != NULL, "create_qp");
	return qp;
}

static void connect(struct ibv_qp *qp, const struct ibv_qp *peer)
{
	struct attributes attributes = { .state = INIT, .port_num = PORT };
	check(ibv_modify_qp(qp, &attributes, TO_INIT) == 0, "INIT");
	attributes.state = RTR;
	attributes.path_mtu = MTU_1024;
	attributes.dest_qp_num = peer->qp_num;
	attributes.min_rnr_timer = 12;
	attributes.address = (struct address){ .sgid_index = 1, .hop_limit = 64, .is_global = 1, .port_num = PORT };
	ibv_query_gid(qp->context, PORT, 1, &attributes.address.dgid);
	check(ibv_modify_qp(qp, &attributes, TO_RTR) == 0, "RTR");
	attributes.state = RTS;
	attributes.timeout = 14;
	attributes.retry_cnt = attributes.rnr_retry = 7;
	check(ibv_modify_qp(qp, &attributes, TO_RTS) == 0, "RTS");
}

static struct ibv_wc poll(struct ibv_cq *cq)
{
	struct ibv_wc completion;
	int count;
	while ((count = ibv_poll_cq(cq, 1, &completion)) == 0)
		;
	check(count == 1, "poll");
	return completion;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Sends numbers. Prints each range of requests with the same status, and how many numbers have arrived. */
static void exchange(struct ibv_context *context)
{
	struct ibv_qp *a = create_qp(context), *b = create_qp(context);
	int statuses[MESSAGES], first = 0, arrived = 0;
	double begin, end;
	connect(a, b);
	connect(b, a);
	for (int n = 0; n < MESSAGES; n++) {
		struct ibv_recv_wr wr = { .wr_id = n }, *bad;
		check(ibv_post_recv(b, &wr, &bad) == 0, "post_recv");
	}
	begin = now();
	for (int n = 0; n < MESSAGES; n++) {
		struct ibv_send_wr wr = { .wr_id = n, .opcode = SEND_WITH_IMM, .imm_data = n }, *bad;
		check(ibv_post_send(a, &wr, &bad) == 0, "post_send");
	}
	for (int n = 0; n < MESSAGES; n++) {
		struct ibv_wc completion = poll(a->send_cq);
		check(completion.wr_id == (uint64_t)n, "the order of completions");
		statuses[n] = completion.status;
		if (n == 0)
			end = now();
	}
	for (int n = 1; n <= MESSAGES; n++) {
		if (n < MESSAGES && statuses[n] == statuses[first])
			continue;
		printf("requests %d to %d: status %d\n", first, n - 1, statuses[first]);
		first = n;
	}
	while (arrived < MESSAGES && statuses[arrived] == IBV_WC_SUCCESS) {
		struct ibv_wc completion = poll(b->recv_cq);
		check(completion.status == IBV_WC_SUCCESS && completion.imm_data == (uint32_t)arrived, "a number");
		arrived++;
	}
	struct ibv_wc another;
	check(ibv_poll_cq(b->recv_cq, 1, &another) == 0, "a request that failed was executed");
	printf("arrived: %d\nthe first after %.0f us\n", arrived, (end - begin) * 1e6);
}

/* Waits for the next event, of this kind. */
static void expect(struct ibv_context *context, int type, const char *name)
{
	struct event event;
	check(ibv_get_async_event(context, &event) == 0 && event.type == type && event.port == PORT, name);
	ibv_ack_async_event(&event);
	printf("%s\n", name);
}

static int same(const struct gid_entry *one, const struct gid_entry *other)
{
	return memcmp(&one->gid, &other->gid, sizeof(one->gid)) == 0 && one->type == other->type;
}

/* Waits until the GIDs are at other indexes than at the beginning. */
static void watch_gids(struct ibv_context *context)
{
	struct gid_entry before[GIDS], after[GIDS];
	ssize_t count = _ibv_query_gid_table(context, before, GIDS, 0, sizeof(before[0]));
	int moved = 0;
	check(count > 1, "several GIDs");
	while (moved == 0) {
		expect(context, EVENT_GID_CHANGE, "GID_CHANGE");
		check(_ibv_query_gid_table(context, after, GIDS, 0, sizeof(after[0])) == count, "as many GIDs");
		while (moved < count && !same(&before[0], &after[moved]))
			moved++;
	}
	for (int n = 0; n < count; n++)
		check(same(&before[n], &after[(n + moved) % count]), "a GID");
	printf("each GID has another index\n");
}

static void leave(int signal)
{
	exit(signal == SIGALRM ? 7 : 1);
}

/* Posts until a signal arrives, whose handler exits. */
static void exit_while_posting(struct ibv_context *context)
{
	struct ibv_qp *qp = create_qp(context);
	struct itimerval timer = { .it_value.tv_usec = 2000 };
	connect(qp, qp);
	signal(SIGALRM, leave);
	setitimer(ITIMER_REAL, &timer, NULL);
	for (;;) {
		struct ibv_recv_wr receive = { .wr_id = 0 }, *bad_receive;
		struct ibv_send_wr send = { .opcode = SEND_WITH_IMM }, *bad_send;
		check(ibv_post_recv(qp, &receive, &bad_receive) == 0, "post_recv");
		check(ibv_post_send(qp, &send, &bad_send) == 0, "post_send");
		poll(qp->send_cq);
		poll(qp->recv_cq);
	}
}

int main(int argc, char **argv)
{
	int count;
	const char *what = argv[argc - 1];
	struct ibv_context *context = ibv_open_device(ibv_get_device_list(&count)[0]);
	check(context != NULL, "open_device");
	if (strcmp(what, "calls") == 0)
		create_queues(context);
	if (strcmp(what, "requests") == 0)
		exchange(context);
	if (strcmp(what, "port") == 0) {
		expect(context, EVENT_PORT_ERR, "PORT_ERR");
		expect(context, EVENT_PORT_ACTIVE, "PORT_ACTIVE");
	}
	if (strcmp(what, "gids") == 0)
		watch_gids(context);
	if (strcmp(what, "exit") == 0)
		exit_while_posting(context);
	return 0;
}
