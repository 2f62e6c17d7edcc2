/* Calls verbs that the software devices lack. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>

void *ibv_import_device(int cmd_fd);
void *ibv_import_pd(void *context, uint32_t handle);
int ibv_set_ece(void *qp, void *ece);
int ibv_query_ece(void *qp, void *ece);
void *ibv_alloc_dmah(void *context, void *attributes);
void *ibv_create_comp_cntr(void *context, void *attributes);
int ibv_query_qp_data_in_order(void *qp, int opcode, uint32_t flags);

static void null(const char *name, void *result)
{
    if (!result && errno == EOPNOTSUPP)
        printf(" %s", name);
    errno = 0;
}

static void number(const char *name, int result)
{
    if (result == EOPNOTSUPP)
        printf(" %s", name);
}

int main(void)
{
    errno = 0;
    printf("unsupported:");
    null("import_device", ibv_import_device(0));
    null("import_pd", ibv_import_pd(NULL, 0));
    number("set_ece", ibv_set_ece(NULL, NULL));
    number("query_ece", ibv_query_ece(NULL, NULL));
    null("alloc_dmah", ibv_alloc_dmah(NULL, NULL));
    null("create_comp_cntr", ibv_create_comp_cntr(NULL, NULL));
    printf("\nin order: %d\n", ibv_query_qp_data_in_order(NULL, 0, 0));
    return 0;
}
