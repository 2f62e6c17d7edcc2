/* Multicast groups of librdmacm, with all members in this process. The argument names the case. */
#include "manager.h"

static char buffer[64];

/* The family of the group. */
static int family = AF_INET;

static struct sockaddr *group(void)
{
	static struct sockaddr_in address = { .sin_family = AF_INET };
	static struct sockaddr_in6 wide = { .sin6_family = AF_INET6 };
	CHECK(inet_pton(AF_INET, "239.1.2.3", &address.sin_addr) == 1);
	CHECK(inet_pton(AF_INET6, "ff0e::1:2:3", &wide.sin6_addr) == 1);
	return family == AF_INET ? (struct sockaddr *)&address : (struct sockaddr *)&wide;
}

/* Returns an ID that reaches the group from an address, or from any. */
static struct rdma_cm_id *resolved_group(struct sockaddr *own)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	if (own)
		CHECK(rdma_bind_addr(id, own) == 0);
	CHECK(rdma_resolve_addr(id, NULL, group(), 1000) == 0);
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	create_qp(id);
	return id;
}

static struct ibv_ah *join(struct rdma_cm_id *id, uint32_t flags)
{
	struct rdma_cm_join_mc_attr_ex attr = { .join_flags = flags, .addr = group() };
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	struct rdma_cm_event *event;
	struct ibv_ah *ah;
	CHECK(rdma_join_multicast_ex(id, &attr, buffer) == 0);
	event = expect(RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->id == id && event->status == 0);
	CHECK(event->param.ud.private_data == buffer && event->param.ud.private_data_len == 0);
	CHECK(event->param.ud.qp_num == 0xffffff && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK((ah = ibv_create_ah(id->pd, &event->param.ud.ah_attr)));
	CHECK(rdma_ack_cm_event(event) == 0);
	return ah;
}

/* Two members receive what the third one sends, until one of them leaves. */
static void members(struct sockaddr *own)
{
	struct rdma_cm_id *ids[3];
	struct ibv_ah *ahs[3];
	struct ibv_mr *mrs[3];
	struct ibv_wc wc;
	for (int i = 0; i < 3; i++) {
		ids[i] = resolved_group(own);
		ahs[i] = join(ids[i],
			i == 2 ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER);
		CHECK((mrs[i] = rdma_reg_msgs(ids[i], buffer, sizeof(buffer))));
		for (int j = 0; j < 2; j++)
			CHECK(rdma_post_recv(ids[i], NULL, buffer, sizeof(buffer), mrs[i]) == 0);
	}
	for (int first = 0; first < 2; first++) {
		CHECK(rdma_post_ud_send(ids[2], NULL, buffer, 8, mrs[2], IBV_SEND_SIGNALED, ahs[2],
			0xffffff) == 0);
		CHECK(rdma_get_send_comp(ids[2], &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		for (int i = first; i < 2; i++) {
			CHECK(rdma_get_recv_comp(ids[i], &wc) == 1 && wc.status == IBV_WC_SUCCESS);
			CHECK(wc.src_qp == ids[2]->qp->qp_num && wc.byte_len == 40 + 8);
		}
		for (int i = 0; i < 3; i++)
			CHECK(ibv_poll_cq(ids[i]->recv_cq, 1, &wc) == 0);
		CHECK(rdma_leave_multicast(ids[first], group()) == 0);
		CHECK(rdma_leave_multicast(ids[first], group()) == -1 && errno == EADDRNOTAVAIL);
	}
	for (int i = 0; i < 3; i++) {
		CHECK(ibv_destroy_ah(ahs[i]) == 0 && rdma_dereg_mr(mrs[i]) == 0);
		end(ids[i]);
	}
}

static void ethernet(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct sockaddr_in6 mapped = { .sin6_family = AF_INET6 };
	struct rdma_cm_id *id;
	members(NULL);
	members(localhost(0));
	/* The route has an address of the device, although the ID is bound to none. */
	id = resolved_group((struct sockaddr *)&any);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr != INADDR_ANY);
	end(id);
	/* As with the kernel's rdma_cm, both addresses are of one family. */
	CHECK(inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr) == 1);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_resolve_addr(id, (struct sockaddr *)&mapped, group(), 1000) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(id) == 0);
}

static void infiniband(void)
{
	struct sockaddr_in6 own = { .sin6_family = AF_INET6 };
	struct ibv_context **devices;
	union ibv_gid gid;
	int count;
	CHECK((devices = rdma_get_devices(&count)) && count == 2);
	/* The GID is an address of the last device only. */
	CHECK(ibv_query_gid(devices[1], 1, 0, &gid) == 0);
	memcpy(&own.sin6_addr, gid.raw, sizeof(gid.raw));
	rdma_free_devices(devices);
	family = AF_INET6;
	members((struct sockaddr *)&own);
}

/* Sends a datagram to the group, and receives it if the ID is a member. */
static void send_to_group(struct rdma_cm_id *id, struct ibv_ah *ah, struct ibv_mr *mr, int is_member)
{
	struct ibv_wc wc;
	CHECK(rdma_post_ud_send(id, NULL, buffer, 8, mr, IBV_SEND_SIGNALED, ah, 0xffffff) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	if (is_member)
		CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_poll_cq(id->recv_cq, 1, &wc) == 0);
}

/* An ID that has joined a group twice is a member until it has left twice. */
static void twice(void)
{
	struct rdma_cm_id *id = resolved_group(NULL);
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	CHECK((mr = rdma_reg_msgs(id, buffer, sizeof(buffer))));
	for (int i = 0; i < 3; i++)
		CHECK(rdma_post_recv(id, NULL, buffer, sizeof(buffer), mr) == 0);
	CHECK(rdma_join_multicast(id, group(), buffer) == 0);
	/* The event is that of the first call. */
	ah = join(id, RDMA_MC_JOIN_FLAG_FULLMEMBER);
	CHECK(rdma_leave_multicast(id, group()) == 0 && readable() == 1);
	pass(RDMA_CM_EVENT_MULTICAST_JOIN);
	send_to_group(id, ah, mr, 1);
	CHECK(ibv_destroy_ah(ah) == 0);
	ah = join(id, RDMA_MC_JOIN_FLAG_FULLMEMBER);
	CHECK(rdma_leave_multicast(id, group()) == 0);
	send_to_group(id, ah, mr, 1);
	CHECK(rdma_leave_multicast(id, group()) == 0);
	send_to_group(id, ah, mr, 0);
	CHECK(rdma_leave_multicast(id, group()) == -1 && errno == EADDRNOTAVAIL);
	CHECK(ibv_destroy_ah(ah) == 0 && rdma_dereg_mr(mr) == 0);
	end(id);
}

static void refusals(void)
{
	struct rdma_cm_join_mc_attr_ex attr = { .addr = group() };
	struct rdma_cm_id *id, *listening, *tcp;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	/* It has no device. */
	CHECK(rdma_join_multicast(id, group(), NULL) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(id) == 0);
	id = resolved_group(NULL);
	CHECK(rdma_join_multicast(id, localhost(0), NULL) == -1 && errno == EINVAL);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_RESERVED;
	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == ENOTSUP);
	/* An ID that leaves before its event is received gets none. */
	CHECK(rdma_join_multicast(id, group(), NULL) == 0 && readable() == 1);
	CHECK(rdma_leave_multicast(id, group()) == 0 && readable() == 0);
	end(id);
	/* Connections have no groups. */
	listening = listener(RDMA_PS_TCP);
	tcp = resolved(ntohs(rdma_get_src_port(listening)), RDMA_PS_TCP);
	CHECK(rdma_join_multicast(tcp, group(), NULL) == -1 && errno == EINVAL);
	end(tcp);
	end(listening);
}

static const struct test_case cases[] = {
	{ "Ethernet", ethernet }, { "InfiniBand", infiniband }, { "refusals", refusals },
	{ "twice", twice },
};

int main(int argc, char **argv)
{
	/* A missing event ends the program. */
	alarm(300);
	CHECK((channel = rdma_create_event_channel()));
	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argv[1]);
}
