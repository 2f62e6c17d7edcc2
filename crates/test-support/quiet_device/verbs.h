/* The data path of libibverbs as a C program sees it: the part of the ABI that the benches need, so that no header has
 * to be installed. The bench compares `quiet_device_layout` with rdma-sys. */
#ifndef QUIET_VERBS_H
#define QUIET_VERBS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct ibv_qp;
struct ibv_cq;
struct ibv_pd;
struct ibv_send_wr;
struct ibv_recv_wr;
struct ibv_wc;

struct ibv_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct ibv_context {
	void *device;
	struct {
		void *before_poll_cq[11];
		int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
		void *before_post_send[13];
		int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
		int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	} ops;
};

/* The beginnings of larger structs. */
struct ibv_qp {
	struct ibv_context *context;
	void *qp_context;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	void *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

/* Among the functions that begin a request or set its data, only those used here. */
struct ibv_qp_ex {
	struct ibv_qp qp_base;
	uint64_t comp_mask;
	uint64_t wr_id;
	unsigned int wr_flags;
	void *others[5];
	void (*wr_rdma_write)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
	void *more[9];
	void (*wr_set_sge)(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length);
	void *set_sge_list;
	void (*wr_start)(struct ibv_qp_ex *qp);
	int (*wr_complete)(struct ibv_qp_ex *qp);
	void (*wr_abort)(struct ibv_qp_ex *qp);
};

struct ibv_cq {
	struct ibv_context *context;
};

enum { IBV_WR_RDMA_WRITE = 0, IBV_WR_SEND = 2 };
enum { IBV_SEND_SIGNALED = 1 << 1, IBV_SEND_INLINE = 1 << 3 };
enum { IBV_WC_SUCCESS = 0 };
enum { IBV_WC_SEND = 0, IBV_WC_RDMA_WRITE = 1, IBV_WC_RECV = 1 << 7 };

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	union {
		uint32_t imm_data;
		uint32_t invalidate_rkey;
	};
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
	} wr;
	uint32_t remote_srqn;
	uint64_t bind_mw_or_tso[6];
};

struct ibv_recv_wr {
	uint64_t wr_id;
	struct ibv_recv_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
};

struct ibv_wc {
	uint64_t wr_id;
	int status;
	int opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data;
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

static inline int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return qp->context->ops.post_send(qp, wr, bad);
}

static inline int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return qp->context->ops.post_recv(qp, wr, bad);
}

static inline int ibv_poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
	return cq->context->ops.poll_cq(cq, room, wc);
}

#endif
