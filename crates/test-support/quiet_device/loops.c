/* The same work as a C program would do it. The loops exist in three kinds: bare, with the checks of rdma-qp's
 * checked posts, and with these checks and the credits that keep a queue from overflowing. Each returns the sum of
 * the polled ids, or -1. */
#include "verbs.h"

/* Always inlined, like hand-written loops. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { DEPTH = 16, PLACES = 64, LENGTH = 8 };

struct region {
	uint64_t address, length;
	uint32_t lkey;
	struct ibv_pd *pd;
};

struct remote {
	uint64_t address, length;
	uint32_t rkey;
};

struct end {
	struct ibv_qp *qp;
	struct ibv_cq *send_cq, *recv_cq;
	struct region region;
	struct remote remote;
	uint32_t max_send_sge, max_recv_sge, max_inline_data;
	/* The number of further requests that fit into each queue. */
	uint32_t send_credits, recv_credits;
	/* Prepared for the bare loops. */
	struct ibv_sge elements[PLACES];
	/* Posts by function calls. */
	struct ibv_qp_ex *extended;
};

/* --- Bare --- */

/* An unsignaled request has no completion. */
ALWAYS_INLINE void write_wr_flags(struct ibv_send_wr *wr, const struct end *end, struct ibv_sge *sge, uint64_t id,
				  int signaled)
{
	*wr = (struct ibv_send_wr){
		.wr_id = id,
		.sg_list = sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = signaled ? IBV_SEND_SIGNALED : 0,
		.wr.rdma = { .remote_addr = end->remote.address, .rkey = end->remote.rkey },
	};
}

ALWAYS_INLINE void write_wr(struct ibv_send_wr *wr, const struct end *end, struct ibv_sge *sge, uint64_t id)
{
	write_wr_flags(wr, end, sge, id, 1);
}

ALWAYS_INLINE int bare_write_flags(struct end *end, uint64_t id, int signaled)
{
	struct ibv_send_wr wr, *bad;

	write_wr_flags(&wr, end, &end->elements[id % PLACES], id, signaled);
	return ibv_post_send(end->qp, &wr, &bad);
}

ALWAYS_INLINE int bare_write(struct end *end, uint64_t id)
{
	return bare_write_flags(end, id, 1);
}

ALWAYS_INLINE int bare_batch(struct end *end, uint64_t id)
{
	struct ibv_send_wr batch[DEPTH], *bad;

	for (int i = 0; i < DEPTH; i++) {
		write_wr(&batch[i], end, &end->elements[(id + i) % PLACES], id + i);
		batch[i].next = i + 1 < DEPTH ? &batch[i + 1] : NULL;
	}
	return ibv_post_send(end->qp, batch, &bad);
}

ALWAYS_INLINE int bare_receive(struct end *end, uint64_t id)
{
	struct ibv_recv_wr wr = {
		.wr_id = id,
		.sg_list = &end->elements[id % PLACES],
		.num_sge = 1,
	}, *bad;

	return ibv_post_recv(end->qp, &wr, &bad);
}

ALWAYS_INLINE int bare_send(struct end *end, uint64_t id)
{
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = &end->elements[id % PLACES],
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	return ibv_post_send(end->qp, &wr, &bad);
}

/* --- With checks --- */

/* Checks bounds and domain. */
ALWAYS_INLINE int element(const struct end *end, uint64_t offset, uint64_t length, struct ibv_sge *sge)
{
	const struct region *region = &end->region;

	if (offset > region->length || length > region->length - offset)
		return -1;
	if (length > UINT32_MAX)
		return -1;
	if (region->pd != end->qp->pd)
		return -1;
	sge->addr = region->address + offset;
	sge->length = length;
	sge->lkey = region->lkey;
	return 0;
}

/* Checks the remote length and the limits of the queue. */
ALWAYS_INLINE int check(const struct end *end, const struct ibv_send_wr *wr, uint64_t remote)
{
	uint64_t bytes = 0;

	for (int i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	if (bytes > remote || (uint32_t)wr->num_sge > end->max_send_sge)
		return -1;
	if (wr->send_flags & IBV_SEND_INLINE && bytes > end->max_inline_data)
		return -1;
	return 0;
}

ALWAYS_INLINE int checked_write_flags(struct end *end, uint64_t id, int signaled)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;

	if (element(end, id % PLACES * LENGTH, LENGTH, &sge))
		return -1;
	write_wr_flags(&wr, end, &sge, id, signaled);
	if (check(end, &wr, end->remote.length))
		return -1;
	return ibv_post_send(end->qp, &wr, &bad);
}

ALWAYS_INLINE int checked_write(struct end *end, uint64_t id)
{
	return checked_write_flags(end, id, 1);
}

ALWAYS_INLINE int checked_batch(struct end *end, uint64_t id)
{
	struct ibv_sge elements[DEPTH];
	struct ibv_send_wr batch[DEPTH], *bad;

	for (int i = 0; i < DEPTH; i++) {
		if (element(end, (id + i) % PLACES * LENGTH, LENGTH, &elements[i]))
			return -1;
		write_wr(&batch[i], end, &elements[i], id + i);
		if (check(end, &batch[i], end->remote.length))
			return -1;
		batch[i].next = i + 1 < DEPTH ? &batch[i + 1] : NULL;
	}
	return ibv_post_send(end->qp, batch, &bad);
}

ALWAYS_INLINE int checked_receive(struct end *end, uint64_t id)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (element(end, id % PLACES * LENGTH, LENGTH, &sge))
		return -1;
	if ((uint32_t)wr.num_sge > end->max_recv_sge)
		return -1;
	return ibv_post_recv(end->qp, &wr, &bad);
}

ALWAYS_INLINE int checked_send(struct end *end, uint64_t id)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	if (element(end, id % PLACES * LENGTH, LENGTH, &sge))
		return -1;
	if (check(end, &wr, UINT64_MAX))
		return -1;
	return ibv_post_send(end->qp, &wr, &bad);
}

/* --- With checks and credits --- */

ALWAYS_INLINE int credited_write_flags(struct end *end, uint64_t id, int signaled)
{
	if (end->send_credits == 0 || checked_write_flags(end, id, signaled))
		return -1;
	end->send_credits--;
	return 0;
}

ALWAYS_INLINE int credited_write(struct end *end, uint64_t id)
{
	return credited_write_flags(end, id, 1);
}

ALWAYS_INLINE int credited_receive(struct end *end, uint64_t id)
{
	if (end->recv_credits == 0 || checked_receive(end, id))
		return -1;
	end->recv_credits--;
	return 0;
}

ALWAYS_INLINE int credited_send(struct end *end, uint64_t id)
{
	if (end->send_credits == 0 || checked_send(end, id))
		return -1;
	end->send_credits--;
	return 0;
}

ALWAYS_INLINE int credited_batch(struct end *end, uint64_t id)
{
	if (end->send_credits < DEPTH || checked_batch(end, id))
		return -1;
	end->send_credits -= DEPTH;
	return 0;
}

/* --- The loops of each kind --- */

#define bare_credits(end, of) NULL
#define checked_credits(end, of) NULL
#define credited_credits(end, of) (&(end)->of##_credits)

/* Polls until there is one completion, which covers `requests` requests. Returns their credits, and adds its id and
 * length to the sum. */
ALWAYS_INLINE int take_one_of(struct ibv_cq *cq, uint32_t *credits, uint64_t *sum, uint32_t requests)
{
	struct ibv_wc wc;
	int count;

	do
		count = ibv_poll_cq(cq, 1, &wc);
	while (count == 0);
	if (count < 0 || wc.status != IBV_WC_SUCCESS)
		return -1;
	if (credits)
		*credits += requests;
	*sum += wc.wr_id;
	if (wc.opcode & IBV_WC_RECV)
		*sum += wc.byte_len;
	return 0;
}

ALWAYS_INLINE int take_one(struct ibv_cq *cq, uint32_t *credits, uint64_t *sum)
{
	return take_one_of(cq, credits, sum, 1);
}

/* Polls until DEPTH completions have been returned. */
ALWAYS_INLINE int take_all(struct ibv_cq *cq, uint32_t *credits, uint64_t *sum)
{
	struct ibv_wc wc[DEPTH];
	int left = DEPTH;

	while (left > 0) {
		int count = ibv_poll_cq(cq, DEPTH, wc);

		if (count < 0)
			return -1;
		for (int i = 0; i < count; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				return -1;
			*sum += wc[i].wr_id;
		}
		if (credits)
			*credits += count;
		left -= count;
	}
	return 0;
}

#define TAKE_ONE(kind, of) take_one(end->of##_cq, kind##_credits(end, of), &sum)
#define TAKE_ALL(kind, of) take_all(end->of##_cq, kind##_credits(end, of), &sum)

#define LOOPS(kind)                                                                      \
	uint64_t kind##_one(struct end *end, uint64_t n)                                 \
	{                                                                                \
		uint64_t sum = 0;                                                        \
		for (uint64_t i = 0; i < n; i++)                                         \
			if (kind##_write(end, i) || TAKE_ONE(kind, send))                \
				return -1;                                               \
		return sum;                                                              \
	}                                                                                \
	uint64_t kind##_outstanding(struct end *end, uint64_t n)                         \
	{                                                                                \
		uint64_t sum = 0;                                                        \
		for (uint64_t i = 0; i < n; i += DEPTH) {                                \
			for (uint64_t k = 0; k < DEPTH; k++)                             \
				if (kind##_write(end, i + k))                            \
					return -1;                                       \
			if (TAKE_ALL(kind, send))                                        \
				return -1;                                               \
		}                                                                        \
		return sum;                                                              \
	}                                                                                \
	uint64_t kind##_unsignaled(struct end *end, uint64_t n)                          \
	{                                                                                \
		uint64_t sum = 0;                                                        \
		for (uint64_t i = 0; i < n; i += DEPTH) {                                \
			for (uint64_t k = 0; k < DEPTH; k++)                             \
				if (kind##_write_flags(end, i + k, k + 1 == DEPTH))      \
					return -1;                                       \
			if (take_one_of(end->send_cq, kind##_credits(end, send), &sum, DEPTH)) \
				return -1;                                               \
		}                                                                        \
		return sum;                                                              \
	}                                                                                \
	uint64_t kind##_batches(struct end *end, uint64_t n)                             \
	{                                                                                \
		uint64_t sum = 0;                                                        \
		for (uint64_t i = 0; i < n; i += DEPTH)                                  \
			if (kind##_batch(end, i) || TAKE_ALL(kind, send))                \
				return -1;                                               \
		return sum;                                                              \
	}                                                                                \
	uint64_t kind##_messages(struct end *end, uint64_t n)                            \
	{                                                                                \
		uint64_t sum = 0;                                                        \
		for (uint64_t i = 0; i < n; i++)                                         \
			if (kind##_receive(end, i) || kind##_send(end, i) ||             \
			    TAKE_ONE(kind, recv) || TAKE_ONE(kind, send))                \
				return -1;                                               \
		return sum;                                                              \
	}

LOOPS(bare)
LOOPS(checked)
LOOPS(credited)

/* A write posted by function calls, and its poll. */
uint64_t extended_one(struct end *end, uint64_t n)
{
	struct ibv_qp_ex *qp = end->extended;
	uint64_t sum = 0;

	for (uint64_t i = 0; i < n; i++) {
		struct ibv_sge *sge = &end->elements[i % PLACES];

		qp->wr_start(qp);
		qp->wr_id = i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		qp->wr_rdma_write(qp, end->remote.rkey, end->remote.address);
		qp->wr_set_sge(qp, sge->lkey, sge->addr, sge->length);
		if (qp->wr_complete(qp) || take_one(qp->qp_base.send_cq, NULL, &sum))
			return -1;
	}
	return sum;
}

uint64_t empty_polls(struct end *end, uint64_t n)
{
	struct ibv_wc wc;

	for (uint64_t i = 0; i < n; i++)
		if (ibv_poll_cq(end->send_cq, 1, &wc))
			return -1;
	return 0;
}
