/* Ends a program that closes its device, if this is loaded before the library. */
#include <unistd.h>

int ibv_close_device(void *context)
{
    _exit(context ? 0 : 1);
}
