/* Lists the devices, and ends as the argument states. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void **ibv_get_device_list(int *count);

static void handle(int signal)
{
    exit(signal == SIGUSR1 ? 5 : 1);
}

int main(int argc, char **argv)
{
    const char *way = argv[argc - 1];
    ibv_get_device_list(NULL);
    signal(SIGUSR1, handle);
    if (strcmp(way, "exit in a handler") == 0)
        raise(SIGUSR1);
    if (strcmp(way, "_exit") == 0)
        _exit(6);
    if (strcmp(way, "kill") == 0)
        raise(SIGKILL);
    return 0;
}
