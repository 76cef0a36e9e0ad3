// Receives UDP with UDP_GRO as an application does, and prints the payload bytes of a period.
//
//     kernel_gro_count PORT WARM_UP_MS TIME_MS
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

static double ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fputs("usage: kernel_gro_count PORT WARM_UP_MS TIME_MS\n", stderr);
        return 2;
    }
    static char buffer[65536];
    int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    struct timeval poll = {.tv_usec = 100000};
    if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof any) ||
        setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &poll, sizeof poll)) {
        perror("kernel_gro_count");
        return 1;
    }
    const double from = ms() + atof(argv[2]);
    double now, first = 0;
    long long bytes = 0, messages = 0;
    do {
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        now = ms();
        if (now < from) continue;
        if (!first) first = now;
        else if (n > 0) bytes += n, messages++;
    } while (now < from + atof(argv[3]));
    printf("{\"bytes\":%lld,\"messages\":%lld,\"seconds\":%.6f}\n", bytes, messages, (now - first) / 1e3);
    return 0;
}
