/* Prints how it sees a fault of the first device, or exits while it posts. The argument states which. */
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include "connection.h"

enum { EVENT_PORT_ACTIVE = 9, EVENT_PORT_ERR = 10, EVENT_GID_CHANGE = 18 };
enum { GIDS = 16 };

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

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct gid_entry *table, size_t room, uint32_t flags,
			     size_t entry_size);
int ibv_get_async_event(struct ibv_context *context, struct event *event);
void ibv_ack_async_event(struct event *event);

static void create_queues(struct ibv_context *context)
{
	for (int call = 1; call <= 4; call++) {
		errno = 0;
		void *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
		printf("call %d: %s\n", call, cq ? "created" : strerror(errno));
	}
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
	struct ibv_qp *a = create_qp(context, RC), *b = create_qp(context, RC);
	int statuses[MESSAGES], first = 0, arrived = 0;
	double begin, end;
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
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
	struct ibv_qp *qp = create_qp(context, RC);
	struct itimerval timer = { .it_value.tv_usec = 2000 };
	connect_to(qp, qp->qp_num);
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
