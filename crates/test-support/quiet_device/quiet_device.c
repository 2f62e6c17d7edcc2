/* A device that does nothing: a posted request has succeeded, and its completion waits to be polled. It moves no data
 * and takes no lock. It serves one queue pair at a time, with one or two completion queues. So the cost of an operation
 * on it is that of the caller's own code. */
#include <errno.h>
#include <stdlib.h>
#include "verbs.h"

enum { ROOM = 1024 }; /* a power of two */
enum { QUEUES = 4 };

struct ring {
	struct ibv_cq *cq;
	uint64_t taken, filled;
	struct ibv_wc entries[ROOM];
};

/* The number of calls of each operation, and of requests and completions. */
struct quiet_device_calls {
	uint64_t post_send, post_recv, poll_cq, requests, completions;
};

static struct ring rings[QUEUES];
static struct {
	uint64_t taken, filled;
	uint64_t wr_ids[ROOM];
} receives;
static struct quiet_device_calls calls;

/* Returns the ring of a completion queue, and assigns one at its first use. */
static struct ring *quiet_ring(struct ibv_cq *cq)
{
	struct ring *ring = rings;

	while (ring->cq != cq && ring->cq)
		if (++ring == rings + QUEUES)
			abort();
	ring->cq = cq;
	return ring;
}

static void quiet_complete(struct ring *ring, struct ibv_qp *qp, uint64_t wr_id, int opcode, uint32_t length)
{
	struct ibv_wc *wc = &ring->entries[ring->filled++ % ROOM];

	wc->wr_id = wr_id;
	wc->status = IBV_WC_SUCCESS;
	wc->opcode = opcode;
	wc->byte_len = length;
	wc->wc_flags = 0;
	wc->qp_num = qp->qp_num;
}

static int quiet_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	calls.post_send++;
	for (; wr; wr = wr->next) {
		int sends = wr->opcode == IBV_WR_SEND;
		struct ring *sent = quiet_ring(qp->send_cq);

		if (sent->filled - sent->taken == ROOM || (sends && receives.taken == receives.filled)) {
			*bad = wr;
			return ENOMEM;
		}
		calls.requests++;
		if (sends)
			quiet_complete(quiet_ring(qp->recv_cq), qp,
				       receives.wr_ids[receives.taken++ % ROOM], IBV_WC_RECV,
				       wr->sg_list->length);
		if (wr->send_flags & IBV_SEND_SIGNALED)
			quiet_complete(sent, qp, wr->wr_id, sends ? IBV_WC_SEND : IBV_WC_RDMA_WRITE, 0);
	}
	return 0;
}

static int quiet_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp;
	calls.post_recv++;
	for (; wr; wr = wr->next) {
		if (receives.filled - receives.taken == ROOM) {
			*bad = wr;
			return ENOMEM;
		}
		calls.requests++;
		receives.wr_ids[receives.filled++ % ROOM] = wr->wr_id;
	}
	return 0;
}

static int quiet_poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
	struct ring *ring = quiet_ring(cq);
	int count = 0;

	calls.poll_cq++;
	while (count < room && ring->taken != ring->filled)
		wc[count++] = ring->entries[ring->taken++ % ROOM];
	calls.completions += count;
	return count;
}

/* Posts by function calls: writes of one element. `complete` posts the requests that were begun since `start`. */
static struct {
	uint64_t wr_id;
	unsigned int flags;
} built[ROOM];
static uint64_t begun;

static void quiet_wr_start(struct ibv_qp_ex *qp)
{
	(void)qp;
	begun = 0;
}

static void quiet_wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	(void)rkey, (void)remote_addr;
	built[begun % ROOM].wr_id = qp->wr_id;
	built[begun++ % ROOM].flags = qp->wr_flags;
}

static void quiet_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	(void)qp, (void)lkey, (void)addr, (void)length;
}

static int quiet_wr_complete(struct ibv_qp_ex *qp)
{
	struct ring *sent = quiet_ring(qp->qp_base.send_cq);

	calls.post_send++;
	if (begun > ROOM - (sent->filled - sent->taken))
		return ENOMEM;
	calls.requests += begun;
	for (uint64_t i = 0; i < begun; i++)
		if (built[i].flags & IBV_SEND_SIGNALED)
			quiet_complete(sent, &qp->qp_base, built[i].wr_id, IBV_WC_RDMA_WRITE, 0);
	return 0;
}

/* Redirects the calls of this queue pair to this device. */
void quiet_device_attach_extended(struct ibv_qp_ex *qp)
{
	qp->wr_start = quiet_wr_start;
	qp->wr_rdma_write = quiet_wr_rdma_write;
	qp->wr_set_sge = quiet_wr_set_sge;
	qp->wr_complete = quiet_wr_complete;
}

/* Redirects the calls of this context's queues to this device. */
void quiet_device_attach(struct ibv_context *context)
{
	context->ops.poll_cq = quiet_poll_cq;
	context->ops.post_send = quiet_post_send;
	context->ops.post_recv = quiet_post_recv;
}

/* Returns the calls since the previous call of this function. */
struct quiet_device_calls quiet_device_calls(void)
{
	struct quiet_device_calls now = calls;

	calls = (struct quiet_device_calls){ 0 };
	return now;
}

/* Sizes and offsets, in the same order as those of rdma-sys in the bench. */
const size_t quiet_device_layout[] = {
	offsetof(struct ibv_context, ops.poll_cq),
	offsetof(struct ibv_context, ops.post_send),
	offsetof(struct ibv_context, ops.post_recv),
	offsetof(struct ibv_qp, send_cq),
	offsetof(struct ibv_qp, recv_cq),
	offsetof(struct ibv_qp, qp_num),
	sizeof(struct ibv_send_wr),
	offsetof(struct ibv_send_wr, send_flags),
	offsetof(struct ibv_send_wr, wr),
	sizeof(struct ibv_recv_wr),
	offsetof(struct ibv_recv_wr, num_sge),
	sizeof(struct ibv_wc),
	offsetof(struct ibv_wc, byte_len),
	offsetof(struct ibv_wc, qp_num),
	offsetof(struct ibv_wc, wc_flags),
	offsetof(struct ibv_qp_ex, wr_id),
	offsetof(struct ibv_qp_ex, wr_flags),
	offsetof(struct ibv_qp_ex, wr_rdma_write),
	offsetof(struct ibv_qp_ex, wr_set_sge),
	offsetof(struct ibv_qp_ex, wr_start),
	offsetof(struct ibv_qp_ex, wr_complete),
};
