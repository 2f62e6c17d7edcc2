/* Allocates a buffer and registers parts of it. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LOCAL_WRITE = 1, MASK_IOVA = 1, MASK_ADDR = 2, MASK_DMAH = 16, SIZE = 10000 };

struct region {
    void *context, *pd, *addr;
    size_t length;
};

struct attributes {
    size_t length;
    int access;
    uint64_t mask, iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    void *dmah, *buf;
};

void **ibv_get_device_list(int *count);
void *ibv_open_device(void *device);
int ibv_close_device(void *context);
void *ibv_alloc_pd(void *context);
int ibv_dealloc_pd(void *pd);
void *ibv_alloc_buf(void *pd, size_t size, void **buf);
void ibv_free_buf(void *buf);
struct region *ibv_reg_buf_mr(void *pd, void *buf, void *addr, size_t length, int access);
struct region *ibv_reg_mr_ex(void *pd, struct attributes *attributes);
int ibv_dereg_mr(struct region *region);

static void report(const char *name, struct region *region)
{
    if (region)
        printf("%s: %zu bytes, %d\n", name, region->length, ibv_dereg_mr(region));
    else
        printf("%s: %s\n", name, strerror(errno));
}

int main(void)
{
    int count;
    void *buf;
    void *context = ibv_open_device(ibv_get_device_list(&count)[0]);
    void *pd = ibv_alloc_pd(context);
    char *memory = ibv_alloc_buf(pd, SIZE, &buf);
    struct attributes attributes = { .length = 50, .access = LOCAL_WRITE, .addr = memory };
    memset(memory, 1, SIZE);
    report("a part", ibv_reg_buf_mr(pd, buf, memory + 100, SIZE - 100, LOCAL_WRITE));
    report("too long", ibv_reg_buf_mr(pd, buf, memory + 100, SIZE - 99, LOCAL_WRITE));
    attributes.mask = MASK_ADDR | MASK_IOVA;
    report("attributes", ibv_reg_mr_ex(pd, &attributes));
    attributes.mask |= MASK_DMAH;
    report("a DMA handle", ibv_reg_mr_ex(pd, &attributes));
    ibv_free_buf(buf);
    return ibv_dealloc_pd(pd) || ibv_close_device(context);
}
