/* Queue pairs that connect over the first device, for programs that include this file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../test-support/quiet_device/verbs.h"

enum { INIT = 1, RTR = 2, RTS = 3 };
enum { RC = 2, UC = 3, MTU_1024 = 3, SEND_WITH_IMM = 3 };
/* The bits of the attributes that a transition needs. */
enum { TO_INIT = 1 | 8 | 16 | 32, TO_RTR = 1 | 128 | 256 | 4096 | 1 << 15 | 1 << 17 | 1 << 20 };
enum { TO_RTS = 1 | 512 | 1024 | 2048 | 1 << 13 | 1 << 16 };
/* Among these, the bits that an unreliable connection has, too. */
enum { UNRELIABLE_RTR = 1 | 128 | 256 | 4096 | 1 << 20, UNRELIABLE_RTS = 1 | 1 << 16 };
enum { PORT = 1, MESSAGES = 64 };

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

void **ibv_get_device_list(int *count);
struct ibv_context *ibv_open_device(void *device);
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *own, void *channel, int vector);
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct init_attributes *attributes);
int ibv_modify_qp(struct ibv_qp *qp, struct attributes *attributes, int mask);
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union gid *gid);

static void check(int works, const char *name)
{
	if (works)
		return;
	printf("%s: %s\n", name, strerror(errno));
	exit(1);
}

static struct ibv_qp *create_qp(struct ibv_context *context, int type)
{
	struct init_attributes attributes = { .cap = { MESSAGES, MESSAGES, 1, 1, 0 }, .qp_type = type, .sq_sig_all = 1 };
	attributes.send_cq = ibv_create_cq(context, MESSAGES, NULL, NULL, 0);
	attributes.recv_cq = ibv_create_cq(context, MESSAGES, NULL, NULL, 0);
	struct ibv_qp *qp = ibv_create_qp(ibv_alloc_pd(context), &attributes);
	check(qp != NULL, "create_qp");
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct attributes attributes = { .state = INIT, .port_num = PORT };
	check(ibv_modify_qp(qp, &attributes, TO_INIT) == 0, "INIT");
	attributes.state = RTR;
	attributes.path_mtu = MTU_1024;
	attributes.dest_qp_num = peer;
	attributes.min_rnr_timer = 12;
	attributes.address = (struct address){ .sgid_index = 1, .hop_limit = 64, .is_global = 1, .port_num = PORT };
	ibv_query_gid(qp->context, PORT, 1, &attributes.address.dgid);
	check(ibv_modify_qp(qp, &attributes, qp->qp_type == UC ? UNRELIABLE_RTR : TO_RTR) == 0, "RTR");
	attributes.state = RTS;
	attributes.timeout = 14;
	attributes.retry_cnt = attributes.rnr_retry = 7;
	check(ibv_modify_qp(qp, &attributes, qp->qp_type == UC ? UNRELIABLE_RTS : TO_RTS) == 0, "RTS");
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
