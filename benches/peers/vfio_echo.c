// Sends frames to a QEMU's dgram netdev and counts those that come back.
//
//   vfio_echo QEMU-SOCKET OWN-SOCKET BYTES SECONDS
//
// Prints frames per second. Frames that are not what was sent are an error.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 32, LONGEST = 2048 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static struct sockaddr_un address(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strncpy(a.sun_path, path, sizeof a.sun_path - 1);
    return a;
}

static int differs(const uint8_t *got, const uint8_t *sent, size_t len, size_t size) {
    size_t at = 14;
    while (at < len && at < size && got[at] == sent[at]) at++;
    fprintf(stderr, "vfio_echo: a frame of %zu bytes came back with %zu, other from byte %zu on:", size, len, at);
    for (size_t i = 0; i < len && i < 64; i++) fprintf(stderr, " %02x", got[i]);
    return fprintf(stderr, "\n"), 1;
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: vfio_echo QEMU-SOCKET OWN-SOCKET BYTES SECONDS\n"), 2;
    size_t size = strtoul(argv[3], NULL, 10);
    double seconds = atof(argv[4]);
    struct sockaddr_un theirs = address(argv[1]), ours = address(argv[2]);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    unlink(argv[2]);
    if (size < 60 || size > LONGEST || fd < 0 || bind(fd, (void *)&ours, sizeof ours) || connect(fd, (void *)&theirs, sizeof theirs))
        return perror("vfio_echo"), 2;

    static uint8_t out[LONGEST], in[BURST][LONGEST];
    static const uint8_t header[14] = {2, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 9, 0x88, 0xb5};
    memcpy(out, header, sizeof header);
    for (size_t i = sizeof header; i < size; i++) out[i] = i * 7;
    struct iovec out_piece = {out, size}, in_pieces[BURST];
    struct mmsghdr sends[BURST] = {0}, receives[BURST] = {0};
    for (int i = 0; i < BURST; i++) {
        in_pieces[i] = (struct iovec){in[i], LONGEST};
        sends[i].msg_hdr = (struct msghdr){.msg_iov = &out_piece, .msg_iovlen = 1};
        receives[i].msg_hdr = (struct msghdr){.msg_iov = &in_pieces[i], .msg_iovlen = 1};
    }
    unsigned long echoed = 0;
    // What comes back in the first half second is not counted.
    double begin = now() + 0.5, end = begin + seconds, t;
    while ((t = now()) < end) {
        int sent = sendmmsg(fd, sends, BURST, 0), got = recvmmsg(fd, receives, BURST, 0, NULL);
        for (int i = 0; i < got; i++)
            if (receives[i].msg_len != size || memcmp(in[i] + 14, out + 14, size - 14))
                return differs(in[i], out, receives[i].msg_len, size);
        if (got > 0 && t >= begin) echoed += got;
        if (sent < 0 && got < 0) {
            if (errno != EAGAIN) return perror("vfio_echo"), 2;
            struct pollfd p = {fd, POLLIN | POLLOUT, 0};
            poll(&p, 1, 10);
        }
    }
    printf("%.0f\n", echoed / seconds);
    return 0;
}
