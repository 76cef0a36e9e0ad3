// The minimum that receives, or echoes, by an AF_XDP socket: the loop over the four rings and its system calls, by libxdp. Frames are
// not looked at, and nothing is counted but their number.
//
//   usage: xdp_least rx|echo INTERFACE [BUSY-POLL-MICROSECONDS BUDGET], until it is killed; rx prints the packets of each second
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xdp/xsk.h>

enum { FRAMES = 4096, FRAME = 2048, RING = 2048, BURST = 64 };

static struct xsk_ring_prod fill, tx;
static struct xsk_ring_cons comp, rx;
static int fd;

static void fail(const char *what, int error) {
    fprintf(stderr, "xdp_least: %s: %s\n", what, strerror(error < 0 ? -error : error));
    exit(1);
}

static void set(int option, int value) {
    if (setsockopt(fd, SOL_SOCKET, option, &value, sizeof value)) fail("setsockopt", errno);
}

// Runs what the kernel has to do for a ring: sending, or with busy polling the interface's receive loop.
static void wake(int busy) {
    int wants_tx = xsk_ring_prod__needs_wakeup(&tx), wants_rx = xsk_ring_prod__needs_wakeup(&fill);
    if (wants_tx) sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
    if (busy || wants_rx) recvfrom(fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
}

// Puts addresses back into FILL.
static void post(const uint64_t *addresses, uint32_t n) {
    uint32_t at;
    while (n && xsk_ring_prod__reserve(&fill, n, &at) != n) wake(0);
    for (uint32_t i = 0; i < n; i++) *xsk_ring_prod__fill_addr(&fill, at + i) = addresses[i] & ~(uint64_t)(FRAME - 1);
    if (n) xsk_ring_prod__submit(&fill, n);
}

// Takes completions.
static void collect(void) {
    uint64_t addresses[BURST];
    uint32_t at, n = xsk_ring_cons__peek(&comp, BURST, &at);
    for (uint32_t i = 0; i < n; i++) addresses[i] = *xsk_ring_cons__comp_addr(&comp, at + i);
    if (n) xsk_ring_cons__release(&comp, n);
    post(addresses, n);
}

int main(int argc, char **argv) {
    int echo = argc > 1 && !strcmp(argv[1], "echo"), busy = argc == 5;
    if ((argc != 3 && !busy) || (!echo && strcmp(argv[1], "rx"))) {
        fprintf(stderr, "usage: xdp_least rx|echo INTERFACE [BUSY-POLL-MICROSECONDS BUDGET]\n");
        return 2;
    }
    struct xsk_umem_config memory = {.fill_size = RING, .comp_size = RING, .frame_size = FRAME};
    struct xsk_socket_config config = {.rx_size = RING, .tx_size = RING, .bind_flags = XDP_USE_NEED_WAKEUP};
    struct xsk_umem *umem;
    struct xsk_socket *xsk;
    void *area;
    if (posix_memalign(&area, (size_t)getpagesize(), (size_t)FRAMES * FRAME)) fail("posix_memalign", ENOMEM);
    memset(area, 0, (size_t)FRAMES * FRAME);
    int error = xsk_umem__create(&umem, area, (uint64_t)FRAMES * FRAME, &fill, &comp, &memory);
    if (error) fail("xsk_umem__create", error);
    if ((error = xsk_socket__create(&xsk, argv[2], 0, umem, &rx, &tx, &config))) fail("xsk_socket__create", error);
    fd = xsk_socket__fd(xsk);
    if (busy) {
        set(SO_PREFER_BUSY_POLL, 1);
        set(SO_BUSY_POLL, atoi(argv[3]));
        set(SO_BUSY_POLL_BUDGET, atoi(argv[4]));
    }
    uint64_t addresses[BURST];
    for (uint32_t frame = 0; frame < RING; frame += BURST) {
        for (uint32_t i = 0; i < BURST; i++) addresses[i] = (uint64_t)(frame + i) * FRAME;
        post(addresses, BURST);
    }
    uint64_t count = 0;
    time_t second = time(NULL);
    for (uint64_t turn = 0;; turn++) {
        uint32_t at, to, n = xsk_ring_cons__peek(&rx, BURST, &at);
        if (echo) collect();
        if (!n) {
            wake(busy);
        } else if (echo) {
            while (xsk_ring_prod__reserve(&tx, n, &to) != n) {
                wake(busy);
                collect();
            }
            for (uint32_t i = 0; i < n; i++) *xsk_ring_prod__tx_desc(&tx, to + i) = *xsk_ring_cons__rx_desc(&rx, at + i);
            xsk_ring_cons__release(&rx, n);
            xsk_ring_prod__submit(&tx, n);
            wake(busy);
        } else {
            for (uint32_t i = 0; i < n; i++) addresses[i] = xsk_ring_cons__rx_desc(&rx, at + i)->addr;
            xsk_ring_cons__release(&rx, n);
            post(addresses, n);
        }
        count += n;
        if (!echo && turn % 1024 == 0 && time(NULL) != second) {
            second = time(NULL);
            printf("%llu\n", (unsigned long long)count);
            fflush(stdout);
            count = 0;
        }
    }
}
