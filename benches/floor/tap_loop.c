// The minimum that forwards between two taps: a read, and a write of what was read, each of them nonblocking, a packet a call, through
// one buffer; poll when both taps are dry. No packet, no metadata, no look at a header, no counter. Any further cost of `towpath fwd
// tap: tap:` is its own; what a packet still costs here is the kernel's.
//
//   usage: tap_loop NETNS NETNS, until it is killed. Makes the tap e0 in both network namespaces, with all offloads.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

// Of Linux 6.2; older headers lack them.
#define F_USO4 0x20
#define F_USO6 0x40
// Packets of one direction before the other has its turn.
enum { BURST = 64 };

static char buffer[sizeof(struct virtio_net_hdr) + 14 + 8 + 65535];

static int fail(const char *what) {
    perror(what);
    exit(1);
}

static int tap(const char *space) {
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%s", space);
    int inside = open(path, O_RDONLY);
    if (inside < 0 || setns(inside, CLONE_NEWNET)) fail(path);
    close(inside);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    struct ifreq request = {.ifr_name = "e0", .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) fail("TUNSETIFF");
    unsigned offloads = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    if (ioctl(fd, TUNSETOFFLOAD, offloads | F_USO4 | F_USO6) && ioctl(fd, TUNSETOFFLOAD, offloads)) fail("TUNSETOFFLOAD");
    return fd;
}

// Returns whether anything was there.
static int pass(int from, int to) {
    int packets = 0;
    for (; packets < BURST; packets++) {
        ssize_t len = read(from, buffer, sizeof buffer);
        if (len < 0) {
            if (errno == EAGAIN) break;
            fail("read");
        }
        // What the host refuses is lost, as on a cable; until the interface is up, all is.
        if (write(to, buffer, (size_t)len) < 0 && errno != EIO && errno != EAGAIN && errno != ENOBUFS) fail("write");
    }
    return packets;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: tap_loop NETNS NETNS\n");
        return 2;
    }
    struct pollfd taps[2] = {{.fd = tap(argv[1]), .events = POLLIN}, {.fd = tap(argv[2]), .events = POLLIN}};
    for (;;) {
        int packets = pass(taps[0].fd, taps[1].fd);
        packets += pass(taps[1].fd, taps[0].fd);
        if (!packets) poll(taps, 2, -1);
    }
}
