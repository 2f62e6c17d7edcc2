/* Calls of librdmacm, with both ends in this process. The argument names the case. */
#include "manager.h"

/* Connects two IDs with queue pairs. */
static void connect_ends(struct rdma_cm_id *listening, struct rdma_cm_id **ends)
{
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6 };
	struct rdma_cm_event *event;
	param.responder_resources = param.initiator_depth = 2;
	param.retry_count = 5;
	param.rnr_retry_count = 6;
	ends[0] = resolved(ntohs(rdma_get_src_port(listening)), RDMA_PS_TCP);
	create_qp(ends[0]);
	CHECK(rdma_connect(ends[0], &param) == 0);

	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listening && event->id != listening);
	CHECK(strcmp(event->id->context, "listener") == 0);
	CHECK(event->param.conn.private_data_len == 56);
	CHECK(strcmp(event->param.conn.private_data, "hello") == 0);
	CHECK(event->param.conn.qp_num == ends[0]->qp->qp_num);
	CHECK(event->param.conn.responder_resources == 2);
	CHECK(event->param.conn.retry_count == 5 && event->param.conn.rnr_retry_count == 6);
	ends[1] = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	create_qp(ends[1]);
	param = (struct rdma_conn_param){ .private_data = "welcome", .private_data_len = 8 };
	param.responder_resources = param.initiator_depth = 1;
	CHECK(rdma_accept(ends[1], &param) == 0);

	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == ends[0] && event->param.conn.private_data_len == 196);
	CHECK(strcmp(event->param.conn.private_data, "welcome") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == ends[1]);
	CHECK(rdma_ack_cm_event(event) == 0);
}

/* Sends a message from one end to the other. */
static void message(struct rdma_cm_id **ends)
{
	static char sent[16] = "message", received[16];
	struct ibv_mr *from = rdma_reg_msgs(ends[0], sent, sizeof(sent));
	struct ibv_mr *to = rdma_reg_msgs(ends[1], received, sizeof(received));
	struct ibv_wc wc;
	CHECK(from && to);
	CHECK(rdma_post_recv(ends[1], NULL, received, sizeof(received), to) == 0);
	CHECK(rdma_post_send(ends[0], NULL, sent, sizeof(sent), from, IBV_SEND_SIGNALED) == 0);
	CHECK(rdma_get_send_comp(ends[0], &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(ends[1], &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(strcmp(received, "message") == 0);
	rdma_dereg_mr(from);
	rdma_dereg_mr(to);
}

static void connection(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP), *ends[2];
	connect_ends(listening, ends);
	message(ends);
	CHECK(rdma_disconnect(ends[0]) == 0);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	/* The end has its event already. */
	CHECK(rdma_disconnect(ends[1]) == 0);
	CHECK(readable() == 0);
	end(ends[0]);
	end(ends[1]);
	end(listening);
}

static void non_blocking(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	CHECK(readable() == 0);
	id = resolved(9, RDMA_PS_TCP);
	CHECK(readable() == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	/* An event that the program has not received ends with its ID. */
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, localhost(9), 1000) == 0);
	CHECK(readable() == 1);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(readable() == 0);
}

static void rejection(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP);
	struct rdma_cm_id *client = resolved(ntohs(rdma_get_src_port(listening)), RDMA_PS_TCP);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_reject(event->id, "no", 3) == 0);
	CHECK(rdma_destroy_id(event->id) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = expect(RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 148);
	CHECK(strcmp(event->param.conn.private_data, "no") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(client);
	end(listening);

	/* The port has no listener any more. */
	client = resolved(9, RDMA_PS_TCP);
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 8);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(client);
}

/* A listener that ends rejects the requests that the program has not received. */
static void unreceived(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP);
	struct rdma_cm_id *client = resolved(ntohs(rdma_get_src_port(listening)), RDMA_PS_TCP);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct pollfd polled = { .fd = channel->fd, .events = POLLIN };
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	CHECK(poll(&polled, 1, -1) == 1);
	end(listening);
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->id == client && event->status != 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(client);
}

/* Sends a request for a connection. */
static struct rdma_cm_id *requesting(struct rdma_cm_id *listening)
{
	struct rdma_cm_id *client = resolved(ntohs(rdma_get_src_port(listening)), RDMA_PS_TCP);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct pollfd polled = { .fd = channel->fd, .events = POLLIN };
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	CHECK(poll(&polled, 1, -1) == 1);
	return client;
}

/* A client ends before the program receives its request. */
static void withdrawal(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP), *ends[2];
	end(requesting(listening));
	for (int i = 0; readable() && i < 1000; i++)
		usleep(10000);
	CHECK(!readable());
	/* The listener serves the next client. */
	connect_ends(listening, ends);
	end(ends[0]);
	end(ends[1]);
	/* The listener may end while a request is withdrawn. */
	end(requesting(listening));
	end(listening);
	usleep(100000);
	CHECK(!readable());
}

/* A request belongs to the channel of its listener, and has its context, when the program receives it. */
static void request_migration(void)
{
	struct rdma_event_channel *first = channel, *other = rdma_create_event_channel();
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP), *client = requesting(listening);
	listening->context = "moved";
	CHECK(rdma_migrate_id(listening, other) == 0);
	CHECK(!readable());
	channel = other;
	struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK(id->channel == other && strcmp(id->context, "moved") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	/* Its later events use the same channel. */
	end(client);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->id == id && event->status != 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(id);
	end(listening);
	rdma_destroy_event_channel(first);
}

static pthread_barrier_t barrier;

static void *disconnect(void *id)
{
	pthread_barrier_wait(&barrier);
	CHECK(rdma_disconnect(id) == 0);
	return NULL;
}

/* Each end receives one event, even if both disconnect at once. */
static void both_disconnect(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP), *ends[2];
	pthread_t threads[2];
	CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
	for (int round = 0; round < 50; round++) {
		connect_ends(listening, ends);
		for (int i = 0; i < 2; i++)
			CHECK(pthread_create(&threads[i], NULL, disconnect, ends[i]) == 0);
		for (int i = 0; i < 2; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		pass(RDMA_CM_EVENT_DISCONNECTED);
		pass(RDMA_CM_EVENT_DISCONNECTED);
		/* Another event would arrive within this time. */
		usleep(10000);
		CHECK(!readable());
		end(ends[0]);
		end(ends[1]);
	}
	end(listening);
}

/* Receives events until each of these ends has one that reports its end. None follows. */
static void end_once(struct rdma_cm_id *listening, struct rdma_cm_id **ends)
{
	int ended[2] = { 0, 0 };
	while (!ended[0] || !ended[1]) {
		struct rdma_cm_event *event;
		CHECK(rdma_get_cm_event(channel, &event) == 0);
		int which = event->id == ends[1];
		CHECK(event->id == ends[which] && !ended[which]);
		ended[which] = event->event != RDMA_CM_EVENT_ESTABLISHED;
		CHECK(rdma_ack_cm_event(event) == 0);
	}
	/* Another event would arrive before those of a later connection. */
	struct rdma_cm_id *later = requesting(listening);
	struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *request = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_reject(request, NULL, 0) == 0);
	event = expect(RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == later);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(request);
	end(later);
	end(ends[0]);
	end(ends[1]);
}

/* An end disconnects before the connection is established: the client before and after it has an answer, or the server. */
static void early_disconnect(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP), *ends[2];
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	struct pollfd polled = { .fd = channel->fd, .events = POLLIN };
	for (int round = 0; round < 60; round++) {
		ends[0] = requesting(listening);
		struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		ends[1] = event->id;
		CHECK(rdma_ack_cm_event(event) == 0);
		create_qp(ends[1]);
		if (round % 3 == 0) {
			CHECK(rdma_disconnect(ends[0]) == 0);
		} else {
			CHECK(rdma_accept(ends[1], &param) == 0);
			if (round % 3 == 1)
				CHECK(poll(&polled, 1, -1) == 1);
			CHECK(rdma_disconnect(ends[round % 3 - 1]) == 0);
		}
		end_once(listening, ends);
	}
	end(listening);
}

static volatile int destroyed;

static void *destroy(void *id)
{
	CHECK(rdma_destroy_id(id) == 0);
	destroyed = 1;
	return NULL;
}

static void acknowledgement(void)
{
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	pthread_t thread;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, localhost(9), 1000) == 0);
	event = expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(pthread_create(&thread, NULL, destroy, id) == 0);
	/* A call that does not wait returns within this time. */
	usleep(200000);
	CHECK(!destroyed);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && destroyed);
}

static void ports(void)
{
	struct rdma_cm_id *first = listener(RDMA_PS_TCP), *second;
	uint16_t port = ntohs(rdma_get_src_port(first));
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(second, localhost(port)) == -1 && errno == EADDRINUSE);
	struct sockaddr_in all = { .sin_family = AF_INET, .sin_port = htons(port) };
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&all) == -1 && errno == EADDRNOTAVAIL);
	end(first);
	CHECK(rdma_bind_addr(second, localhost(port)) == 0);
	/* Another port space has its own ports. */
	CHECK(rdma_create_id(channel, &first, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_bind_addr(first, localhost(port)) == 0);
	end(first);
	end(second);
}

static struct rdma_addrinfo *info(int flags, const char *port, int qp_type)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *found;
	hints.ai_qp_type = qp_type;
	CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &found) == 0);
	return found;
}

static struct ibv_qp_init_attr small(void)
{
	struct ibv_qp_init_attr attr = { .sq_sig_all = 1 };
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	return attr;
}

static void *serve(void *listening)
{
	struct rdma_cm_id *id;
	CHECK(rdma_get_request(listening, &id) == 0);
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_accept(id, NULL) == 0);
	return id;
}

static void waiting(void)
{
	struct rdma_addrinfo *found = info(RAI_PASSIVE, "0", IBV_QPT_RC);
	struct ibv_qp_init_attr attr = small();
	struct rdma_cm_id *listening, *ends[2];
	pthread_t thread;
	void *accepted;
	char port[8];
	CHECK(rdma_create_ep(&listening, found, NULL, &attr) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_listen(listening, 0) == 0);
	CHECK(pthread_create(&thread, NULL, serve, listening) == 0);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listening)));
	found = info(0, port, IBV_QPT_RC);
	attr = small();
	CHECK(rdma_create_ep(&ends[0], found, NULL, &attr) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_connect(ends[0], NULL) == 0);
	CHECK(pthread_join(thread, &accepted) == 0);
	ends[1] = accepted;
	message(ends);
	CHECK(rdma_disconnect(ends[0]) == 0);
	CHECK(rdma_disconnect(ends[1]) == 0);
	rdma_destroy_ep(ends[0]);
	rdma_destroy_ep(ends[1]);

	/* The other end is not there. */
	rdma_destroy_ep(listening);
	found = info(0, port, IBV_QPT_RC);
	attr = small();
	CHECK(rdma_create_ep(&ends[0], found, NULL, &attr) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_connect(ends[0], NULL) == -1 && errno == ECONNREFUSED);
	rdma_destroy_ep(ends[0]);
}

static void migration(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, localhost(9), 1000) == 0);
	CHECK(rdma_migrate_id(id, other) == 0 && id->channel == other);
	CHECK(readable() == 0);
	rdma_destroy_event_channel(channel);
	channel = other;
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	/* Without a channel, the calls wait. */
	CHECK(rdma_migrate_id(id, NULL) == 0);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	end(id);
}

static void datagrams(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_UDP), *ends[2];
	struct rdma_conn_param param = { .private_data = "who", .private_data_len = 4 };
	struct rdma_cm_event *event;
	ends[0] = resolved(ntohs(rdma_get_src_port(listening)), RDMA_PS_UDP);
	create_qp(ends[0]);
	CHECK(rdma_connect(ends[0], &param) == 0);
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.ud.private_data_len == 180);
	CHECK(strcmp(event->param.ud.private_data, "who") == 0);
	ends[1] = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	create_qp(ends[1]);
	param.private_data = "me";
	param.private_data_len = 3;
	CHECK(rdma_accept(ends[1], &param) == 0);
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == ends[0] && event->param.ud.private_data_len == 136);
	CHECK(strcmp(event->param.ud.private_data, "me") == 0);
	CHECK(event->param.ud.qp_num == ends[1]->qp->qp_num);
	CHECK(event->param.ud.qkey == RDMA_UDP_QKEY);
	struct ibv_ah *ah = ibv_create_ah(ends[0]->pd, &event->param.ud.ah_attr);
	CHECK(ah && ibv_destroy_ah(ah) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(ends[0]);
	end(ends[1]);
	end(listening);

	/* The service has no listener any more. */
	ends[0] = resolved(9, RDMA_PS_UDP);
	create_qp(ends[0]);
	CHECK(rdma_connect(ends[0], &param) == 0);
	event = expect(RDMA_CM_EVENT_UNREACHABLE);
	CHECK(event->status == 1);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(ends[0]);
}

/* The program creates and moves the queue pairs itself. */
static void own_queue_pairs(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP), *ids[2];
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	struct ibv_qp *qps[2];
	struct rdma_cm_event *event;
	ids[0] = resolved(ntohs(rdma_get_src_port(listening)), RDMA_PS_TCP);
	struct ibv_cq *cq = ibv_create_cq(ids[0]->verbs, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq };
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 1;
	for (int i = 0; i < 2; i++)
		CHECK((qps[i] = ibv_create_qp(ids[0]->pd, &attr)));
	param.qp_num = qps[0]->qp_num;
	CHECK(rdma_connect(ids[0], &param) == 0);
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	ids[1] = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	param.qp_num = qps[1]->qp_num;
	for (int end = 1; end >= 0; end--) {
		for (int i = 0; i < 3; i++) {
			struct ibv_qp_attr to = { .qp_state = states[i] };
			int mask;
			CHECK(rdma_init_qp_attr(ids[end], &to, &mask) == 0);
			CHECK(ibv_modify_qp(qps[end], &to, mask) == 0);
		}
		if (end == 1) {
			CHECK(rdma_accept(ids[1], &param) == 0);
			pass(RDMA_CM_EVENT_CONNECT_RESPONSE);
		} else {
			CHECK(rdma_establish(ids[0]) == 0);
		}
	}
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == ids[1]);
	CHECK(rdma_ack_cm_event(event) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qps[i]) == 0);
	end(ids[0]);
	end(ids[1]);
	end(listening);
	CHECK(ibv_destroy_cq(cq) == 0);
}

/* A listener of another type of queue pairs rejects a request. */
static void types(void)
{
	struct rdma_addrinfo *found = info(RAI_PASSIVE, "0", IBV_QPT_UC);
	struct ibv_qp_init_attr attr = small();
	struct rdma_cm_id *listening, *client;
	char port[8];
	CHECK(rdma_create_ep(&listening, found, NULL, &attr) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_listen(listening, 0) == 0);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listening)));
	found = info(0, port, IBV_QPT_RC);
	attr = small();
	CHECK(rdma_create_ep(&client, found, NULL, &attr) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_connect(client, NULL) == -1 && errno == ECONNREFUSED);
	rdma_destroy_ep(client);
	rdma_destroy_ep(listening);
}

/* The peer's process is killed. */
static void death(void)
{
	int pipes[2];
	uint16_t port;
	CHECK(pipe(pipes) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		/* The child has no alarm of its parent. */
		alarm(60);
		channel = rdma_create_event_channel();
		struct rdma_cm_id *listening = listener(RDMA_PS_TCP);
		port = ntohs(rdma_get_src_port(listening));
		CHECK(write(pipes[1], &port, sizeof(port)) == sizeof(port));
		struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		create_qp(event->id);
		CHECK(rdma_accept(event->id, NULL) == 0);
		pause();
	}
	CHECK(read(pipes[0], &port, sizeof(port)) == sizeof(port));
	channel = rdma_create_event_channel();
	struct rdma_cm_id *client = resolved(port, RDMA_PS_TCP);
	create_qp(client);
	CHECK(rdma_connect(client, NULL) == 0);
	pass(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	end(client);
}

static const struct test_case cases[] = {
	{ "connection", connection }, { "non-blocking", non_blocking },
	{ "rejection", rejection }, { "unreceived", unreceived },
	{ "acknowledgement", acknowledgement }, { "ports", ports },
	{ "waiting", waiting }, { "migration", migration },
	{ "datagrams", datagrams }, { "own queue pairs", own_queue_pairs },
	{ "death", death }, { "withdrawal", withdrawal },
	{ "request migration", request_migration }, { "types", types },
	{ "both disconnect", both_disconnect }, { "early disconnect", early_disconnect },
};

int main(int argc, char **argv)
{
	/* A missing event ends the program. */
	alarm(60);
	/* This case forks before it uses the library. */
	if (strcmp(argv[1], "death") != 0)
		CHECK((channel = rdma_create_event_channel()));
	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argv[1]);
}
