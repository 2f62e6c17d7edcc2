/* Opens the first device, and prints whether the program has rights that its user does not have. */
#include <stdio.h>
#include <sys/auxv.h>

void **ibv_get_device_list(int *count);
const char *ibv_get_device_name(void *device);
void *ibv_open_device(void *device);

int main(void)
{
    void *device = ibv_get_device_list(NULL)[0];
    printf("with%s rights\n", getauxval(AT_SECURE) ? "" : "out");
    printf("%s %s\n", ibv_get_device_name(device), ibv_open_device(device) ? "opened" : "not opened");
    return 0;
}
