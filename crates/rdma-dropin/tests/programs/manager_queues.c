/* Queue pairs with extended attributes, shared receive queues, notifications and options of vendors, with both ends in this
 * process. The argument names the case. */
#include "manager.h"

/* Attributes of a queue pair that sends with `ibv_wr_*`. */
static struct ibv_qp_init_attr_ex extended(void)
{
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_RC };
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	return attr;
}

static void create_extended(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr_ex attr = extended();
	CHECK(rdma_create_qp_ex(id, &attr) == 0);
	CHECK(id->qp && id->qp->srq == id->srq && attr.pd == id->pd);
	CHECK(attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq);
	CHECK(id->qp->send_cq == id->send_cq && id->qp->recv_cq == id->recv_cq);
	/* An ID has one queue pair. */
	struct ibv_qp *qp = id->qp;
	CHECK(rdma_create_qp_ex(id, &attr) == -1 && errno == EINVAL && id->qp == qp);
}

/* Requests a connection, and returns the ID of the other end. `has_srq` is whether the client has a shared receive queue. */
static struct rdma_cm_id *request(struct rdma_cm_id *client, int has_srq)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.conn.srq == has_srq);
	id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

static struct rdma_cm_id *client_of(struct rdma_cm_id *listening)
{
	return resolved(ntohs(rdma_get_src_port(listening)), RDMA_PS_TCP);
}

static void establish(struct rdma_cm_id *server)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	CHECK(rdma_accept(server, &param) == 0);
	pass(RDMA_CM_EVENT_ESTABLISHED);
	pass(RDMA_CM_EVENT_ESTABLISHED);
}

/* Sends a message with `ibv_wr_*` from one end to the other, which receives it from its queue. */
static void message(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static char sent[16] = "message", received[16];
	struct ibv_mr *source = rdma_reg_msgs(from, sent, sizeof(sent));
	struct ibv_mr *target = rdma_reg_msgs(to, received, sizeof(received));
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from->qp);
	struct ibv_wc wc;
	CHECK(source && target && qp);
	memset(received, 0, sizeof(received));
	CHECK(rdma_post_recv(to, &received, received, sizeof(received), target) == 0);
	ibv_wr_start(qp);
	qp->wr_id = 7;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, source->lkey, (uintptr_t)sent, sizeof(sent));
	CHECK(ibv_wr_complete(qp) == 0);
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(wc.wr_id == (uintptr_t)&received && wc.qp_num == to->qp->qp_num);
	CHECK(strcmp(received, "message") == 0);
	rdma_dereg_mr(source);
	rdma_dereg_mr(target);
}

static void disconnect(struct rdma_cm_id *id)
{
	CHECK(rdma_disconnect(id) == 0);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	pass(RDMA_CM_EVENT_DISCONNECTED);
}

static void extended_attributes(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP);
	struct rdma_cm_id *client = client_of(listening), *server;
	struct ibv_qp_init_attr_ex attr = extended();
	struct ibv_pd *own = ibv_alloc_pd(client->verbs);
	struct ibv_cq *cqs[2];

	create_extended(client);
	server = request(client, 0);
	/* The program's own objects. */
	for (int i = 0; i < 2; i++)
		CHECK((cqs[i] = ibv_create_cq(server->verbs, 4, NULL, NULL, 0)));
	attr.pd = own;
	attr.send_cq = cqs[0];
	attr.recv_cq = cqs[1];
	CHECK(rdma_create_qp_ex(server, &attr) == 0);
	CHECK(server->pd == own && server->qp->pd == own);
	CHECK(server->qp->send_cq == cqs[0] && server->qp->recv_cq == cqs[1]);
	CHECK(!server->send_cq && !server->recv_cq);
	rdma_destroy_qp(server);
	CHECK(!server->qp);

	create_extended(server);
	establish(server);
	message(client, server);
	message(server, client);
	disconnect(client);
	end(client);
	end(server);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_cq(cqs[i]) == 0);
	CHECK(ibv_dealloc_pd(own) == 0);
	end(listening);
}

/* Attributes that do not fit are refused. The ID has no queue pair then, and can get one. */
static void refused_attributes(void)
{
	struct rdma_cm_id *id = resolved(9, RDMA_PS_TCP), *bound;
	struct ibv_qp_init_attr_ex attr = extended();
	struct ibv_srq_init_attr_ex srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_context **devices, *other;
	int count;

	CHECK((devices = rdma_get_devices(&count)) && count >= 2);
	other = devices[0] == id->verbs ? devices[1] : devices[0];
	CHECK((attr.pd = ibv_alloc_pd(other)));
	CHECK(rdma_create_qp_ex(id, &attr) == -1 && errno == EINVAL && !id->qp);
	CHECK(ibv_dealloc_pd(attr.pd) == 0);
	rdma_free_devices(devices);

	CHECK(rdma_create_srq_ex(id, &srq) == -1 && errno == EINVAL && !id->srq);
	srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	srq.srq_type = IBV_SRQT_XRC;
	CHECK(rdma_create_srq_ex(id, &srq) == -1 && !id->srq);
	srq.srq_type = IBV_SRQT_BASIC;
	srq.attr.max_wr = UINT32_MAX;
	CHECK(rdma_create_srq_ex(id, &srq) == -1 && errno == EINVAL && !id->srq);

	create_extended(id);
	end(id);

	/* An ID without a device has nowhere to create a queue pair. */
	CHECK(rdma_create_id(channel, &bound, NULL, RDMA_PS_TCP) == 0);
	attr = extended();
	CHECK(rdma_create_qp_ex(bound, &attr) == -1 && errno == EINVAL);
	end(bound);
}

/* Each end has a queue of its own. The queue pairs receive from them. */
static void shared_receive_queues(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP);
	struct rdma_cm_id *client = client_of(listening), *server, *ends[2];
	struct ibv_srq_init_attr basic = { .srq_context = client };
	struct ibv_srq_init_attr_ex wanted = { .comp_mask = IBV_SRQ_INIT_ATTR_TYPE };
	struct ibv_srq_attr limits;
	struct ibv_srq *srq;

	basic.attr.max_wr = 4;
	basic.attr.max_sge = 1;
	CHECK(rdma_create_srq(client, NULL, &basic) == 0);
	CHECK(client->srq && client->srq->pd == client->pd && client->srq->srq_context == client);
	CHECK(basic.attr.max_wr >= 4);
	CHECK(ibv_query_srq(client->srq, &limits) == 0 && limits.max_wr == basic.attr.max_wr);
	create_extended(client);

	server = request(client, 1);
	wanted.srq_type = IBV_SRQT_BASIC;
	wanted.attr = (struct ibv_srq_attr){ .max_wr = 4, .max_sge = 1 };
	CHECK(rdma_create_srq_ex(server, &wanted) == 0);
	CHECK(server->srq && wanted.pd == server->pd && server->srq->pd == server->pd);
	CHECK(wanted.comp_mask & IBV_SRQ_INIT_ATTR_PD);
	create_extended(server);
	establish(server);
	message(client, server);
	message(server, client);
	disconnect(server);

	ends[0] = client;
	ends[1] = server;
	for (int i = 0; i < 2; i++) {
		rdma_destroy_qp(ends[i]);
		rdma_destroy_srq(ends[i]);
		CHECK(!ends[i]->srq && !ends[i]->qp);
	}
	/* A protection domain can be given, and ends after the queue. */
	CHECK((basic.srq_context = ibv_alloc_pd(client->verbs)));
	CHECK(rdma_create_srq(client, basic.srq_context, &basic) == 0);
	srq = client->srq;
	CHECK(srq && srq->pd == basic.srq_context && srq->pd != client->pd);
	CHECK(ibv_dealloc_pd(basic.srq_context) == EBUSY);
	rdma_destroy_srq(client);
	CHECK(ibv_dealloc_pd(basic.srq_context) == 0);
	end(client);
	end(server);
	end(listening);
}

/* The program reports that a packet of the peer has arrived before its confirmation. */
static void notification(void)
{
	struct rdma_event_channel *of_client, *of_server = channel;
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP), *client, *server;
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;

	CHECK((of_client = rdma_create_event_channel()));
	channel = of_client;
	client = client_of(listening);
	CHECK(rdma_notify(client, IBV_EVENT_COMM_EST) == -1 && errno == EINVAL);
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	channel = of_server;
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	create_qp(server);
	CHECK(rdma_notify(server, IBV_EVENT_COMM_EST) == -1);
	CHECK(rdma_accept(server, &param) == 0);
	/* Only its event makes the client confirm, and it stays unread. */
	CHECK(readable() == 0);
	CHECK(rdma_notify(server, IBV_EVENT_QP_FATAL) == -1 && errno == EINVAL);
	CHECK(rdma_notify(server, IBV_EVENT_COMM_EST) == 0);
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == server && event->status == 0);
	CHECK(rdma_ack_cm_event(event) == 0);

	channel = of_client;
	pass(RDMA_CM_EVENT_ESTABLISHED);
	channel = of_server;
	CHECK(readable() == 0);
	CHECK(rdma_disconnect(client) == 0);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	channel = of_client;
	pass(RDMA_CM_EVENT_DISCONNECTED);
	end(client);
	rdma_destroy_event_channel(of_client);
	channel = of_server;
	end(server);
	end(listening);
}

/* An end that needs other options rejects with a reason of its own. The device has no options, and reports none. */
static void options(void)
{
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP);
	struct rdma_cm_id *client = client_of(listening), *server;
	struct ibv_ece ece = { .vendor_id = 0x2c9, .options = 5 };
	struct ibv_ece remote = ece, wrong = { .vendor_id = 0x2c9, .comp_mask = 1 };
	struct rdma_cm_event *event;

	CHECK(rdma_set_local_ece(client, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_set_local_ece(NULL, &ece) == -1 && errno == EINVAL);
	CHECK(rdma_set_local_ece(client, &wrong) == -1 && errno == EINVAL);
	wrong = (struct ibv_ece){ .options = 5 };
	CHECK(rdma_set_local_ece(client, &wrong) == -1 && errno == EINVAL);
	CHECK(rdma_set_local_ece(client, &ece) == 0);
	create_qp(client);
	/* The library uses the options of a queue pair that it has created. */
	CHECK(rdma_set_local_ece(client, &ece) == -1 && errno == EINVAL);
	CHECK(rdma_get_remote_ece(client, &remote) == -1 && errno == EINVAL);

	server = request(client, 0);
	CHECK(rdma_get_remote_ece(server, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_get_remote_ece(server, &remote) == 0);
	CHECK(remote.vendor_id == 0 && remote.options == 0 && remote.comp_mask == 0);
	CHECK(rdma_reject_ece(server, "options", 8) == 0);
	end(server);
	event = expect(RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == client && event->status == 35);
	CHECK(event->param.conn.private_data_len == 148);
	CHECK(strcmp(event->param.conn.private_data, "options") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(client);
	end(listening);
}

static const struct test_case cases[] = {
	{ "extended attributes", extended_attributes }, { "refused attributes", refused_attributes },
	{ "shared receive queues", shared_receive_queues }, { "notification", notification },
	{ "options", options },
};

int main(int argc, char **argv)
{
	/* A missing event ends the program. */
	alarm(300);
	CHECK((channel = rdma_create_event_channel()));
	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argv[1]);
}
