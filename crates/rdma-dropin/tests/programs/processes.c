/* Two processes exchange numbers over a connection, whose kind is the argument. Each prints how many have arrived. */
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connection.h"

/* Sends a number to the other process, and returns that of the other process. */
static uint32_t swap(int other, uint32_t number)
{
	check(write(other, &number, sizeof(number)) == sizeof(number), "write");
	check(read(other, &number, sizeof(number)) == sizeof(number), "read");
	return number;
}

static void exchange(int other, int type)
{
	int count;
	struct ibv_context *context = ibv_open_device(ibv_get_device_list(&count)[0]);
	check(context != NULL, "open_device");
	struct ibv_qp *qp = create_qp(context, type);
	connect_to(qp, swap(other, qp->qp_num));
	for (int n = 0; n < MESSAGES; n++) {
		struct ibv_recv_wr wr = { .wr_id = n }, *bad;
		check(ibv_post_recv(qp, &wr, &bad) == 0, "post_recv");
	}
	/* Now the other process can receive, too. */
	swap(other, 0);
	for (int n = 0; n < MESSAGES; n++) {
		struct ibv_send_wr wr = { .wr_id = n, .opcode = SEND_WITH_IMM, .imm_data = n }, *bad;
		check(ibv_post_send(qp, &wr, &bad) == 0, "post_send");
	}
	for (int n = 0; n < MESSAGES; n++) {
		struct ibv_wc sent = poll(qp->send_cq), arrived = poll(qp->recv_cq);
		check(sent.status == IBV_WC_SUCCESS && sent.wr_id == (uint64_t)n, "a request");
		check(arrived.status == IBV_WC_SUCCESS && arrived.imm_data == (uint32_t)n, "a number");
	}
	/* Now the other process has received everything. */
	swap(other, 0);
	printf("arrived: %d\n", MESSAGES);
}

int main(int argc, char **argv)
{
	int ends[2], type = strcmp(argv[argc - 1], "uc") == 0 ? UC : RC, status;
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
	pid_t child = fork();
	check(child >= 0, "fork");
	close(ends[child == 0]);
	exchange(ends[child != 0], type);
	if (child == 0)
		return 0;
	check(wait(&status) == child && status == 0, "the other process");
	return 0;
}
