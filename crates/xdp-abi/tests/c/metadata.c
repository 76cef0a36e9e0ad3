/*
 * Metadata of sent frames, and the functions of libxdp 1.4 and 1.5, whose headers need not be there.
 *
 *   metadata IF       exits with 0 when all answers are right; the other side echoes
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xdp/xsk.h>

enum { FRAMES = 64, FRAME = 2048, METADATA = 24, PATIENCE = 60, SIZE = FRAMES * FRAME };

/* Of <linux/if_xdp.h> since Linux 6.8. */
enum { TX_SW_CSUM = 2, TX_METADATA_LEN = 4, OPTION_METADATA = 2 };
enum { ASK_TIMESTAMP = 1, ASK_CHECKSUM = 2, ASK_LAUNCH_TIME = 4 };
struct tx_metadata {
	__u64 flags;
	__u16 csum_start, csum_offset;
	__u64 launch_time;
};

/* Of <xdp/xsk.h> since libxdp 1.5. */
#ifndef xsk_umem_opts__last_field
struct xsk_umem_opts {
	size_t sz;
	int fd;
	__u64 size;
	__u32 fill_size, comp_size, frame_size, frame_headroom, flags, tx_metadata_len;
};
struct xsk_socket_opts {
	size_t sz;
	struct xsk_ring_cons *rx;
	struct xsk_ring_prod *tx, *fill;
	struct xsk_ring_cons *comp;
	__u32 rx_size, tx_size, libxdp_flags, xdp_flags;
	__u16 bind_flags;
};
struct xsk_umem *xsk_umem__create_opts(void *area, struct xsk_ring_prod *fill, struct xsk_ring_cons *comp,
				       struct xsk_umem_opts *opts);
struct xsk_socket *xsk_socket__create_opts(const char *ifname, __u32 queue, struct xsk_umem *umem,
					   struct xsk_socket_opts *opts);
int xsk_umem__create_with_fd(struct xsk_umem **umem, int fd, void *area, __u64 size, struct xsk_ring_prod *fill,
			     struct xsk_ring_cons *comp, const struct xsk_umem_config *config);
#endif

static unsigned char *area;
static struct xsk_umem *umem;
static struct xsk_socket *xsk;
static struct xsk_ring_prod fill, tx;
static struct xsk_ring_cons comp, rx;
static int failures;

static void is(const char *what, long long got, long long expected)
{
	if (got == expected)
		return;
	failures++;
	printf("%s: %lld, not %lld\n", what, got, expected);
}

static __u64 invalid(void)
{
	struct xdp_statistics all = { 0 };
	socklen_t len = sizeof(all);

	is("XDP_STATISTICS", getsockopt(xsk_socket__fd(xsk), SOL_XDP, XDP_STATISTICS, &all, &len), 0);
	return all.tx_invalid_descs;
}

/* The sum that the bytes add up to, from a place on. */
static __u16 sum(const unsigned char *bytes, int len, __u32 sum)
{
	for (int i = 0; i < len; i += 2)
		sum += bytes[i] << 8 | (i + 1 < len ? bytes[i + 1] : 0);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

enum { UDP = 34, LEN = 90, DATAGRAM = LEN - UDP };

/* The pseudo-header of the datagram below. */
static __u16 pseudo(const unsigned char *frame)
{
	return sum(frame + 26, 8, 17 + DATAGRAM);
}

/* A datagram whose checksum is that of its pseudo-header alone, behind metadata that asks for something. */
static __u64 datagram(struct tx_metadata ask)
{
	static const unsigned char head[] = {
		2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, LEN - 14, 0, 0, 0, 0, 64, 17,
		0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 4, 0, 0, 7, 0, DATAGRAM, 0, 0,
	};
	__u64 addr = 256;
	unsigned char *frame = area + addr;
	__u16 partial;

	memset(frame, 0x5a, LEN);
	memcpy(frame, head, sizeof(head));
	partial = pseudo(frame);
	frame[UDP + 6] = partial >> 8;
	frame[UDP + 7] = partial;
	memcpy(frame - METADATA, &ask, sizeof(ask));
	return addr;
}

static void send_one(__u64 addr)
{
	time_t end = time(NULL) + PATIENCE;
	__u32 at = 0;

	is("room in TX", xsk_ring_prod__reserve(&tx, 1, &at), 1);
	*xsk_ring_prod__tx_desc(&tx, at) = (struct xdp_desc){ .addr = addr, .len = LEN, .options = OPTION_METADATA };
	xsk_ring_prod__submit(&tx, 1);
	while (!xsk_ring_cons__peek(&comp, 1, &at) && time(NULL) < end)
		if (xsk_ring_prod__needs_wakeup(&tx))
			sendto(xsk_socket__fd(xsk), NULL, 0, MSG_DONTWAIT, NULL, 0);
	is("a completion in time", time(NULL) < end, true);
	xsk_ring_cons__release(&comp, 1);
}

/* The frame comes back, with a checksum that is right. */
static void checksum(void)
{
	time_t end = time(NULL) + PATIENCE;
	__u32 at = 0;

	do {
		send_one(datagram((struct tx_metadata){ ASK_CHECKSUM, UDP, 6, 0 }));
		usleep(1000);
	} while (!xsk_ring_cons__peek(&rx, 1, &at) && time(NULL) < end);
	is("a frame in time", time(NULL) < end, true);
	if (failures)
		return;
	const struct xdp_desc *desc = xsk_ring_cons__rx_desc(&rx, at);
	const unsigned char *frame = xsk_umem__get_data(area, desc->addr);

	is("its length", desc->len, LEN);
	is("its sum", sum(frame + UDP, DATAGRAM, pseudo(frame)), 0xffff);
	xsk_ring_cons__release(&rx, 1);
	is("tx_invalid_descs", invalid(), 0);
}

/* What a datapath can't do: the frame is completed, not sent, and counted. */
static void refused(void)
{
	static const struct tx_metadata asks[] = {
		{ ASK_TIMESTAMP, 0, 0, 0 }, { ASK_LAUNCH_TIME, 0, 0, 1 }, { 1u << 20, 0, 0, 0 }, { ASK_CHECKSUM, LEN, 6, 0 },
	};

	for (unsigned int i = 0; i < sizeof(asks) / sizeof(*asks); i++) {
		send_one(datagram(asks[i]));
		is("tx_invalid_descs", invalid(), i + 1);
	}
}

static void wrong_options(const char *ifname)
{
	struct xsk_umem_opts wrong[] = {
		{ .sz = 4, .size = SIZE }, { .sz = sizeof(*wrong) }, { .sz = sizeof(*wrong), .size = SIZE, .flags = 1u << 31 },
		{ .sz = sizeof(*wrong), .size = SIZE, .flags = TX_METADATA_LEN },
		{ .sz = sizeof(*wrong), .size = SIZE, .flags = TX_METADATA_LEN, .tx_metadata_len = 8 },
		{ .sz = sizeof(*wrong), .size = SIZE, .flags = TX_METADATA_LEN, .tx_metadata_len = 20 },
		{ .sz = sizeof(*wrong), .size = SIZE, .flags = TX_METADATA_LEN, .tx_metadata_len = 256 },
	};
	struct xsk_umem_config flag = { 64, 64, FRAME, 0, TX_METADATA_LEN };
	struct xsk_socket_opts one = { .sz = sizeof(one), .tx = &tx, .comp = &comp };

	for (unsigned int i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		errno = 0;
		is("wrong options", xsk_umem__create_opts(area, &fill, &comp, &wrong[i]) == NULL, 1);
		is("EINVAL", errno, EINVAL);
	}
	is("no memory", xsk_umem__create_opts(NULL, &fill, &comp, &wrong[1]) == NULL, 1);
	is("EFAULT", errno, EFAULT);
	is("no length", xsk_umem__create(&umem, area, SIZE, &fill, &comp, &flag), -EINVAL);
	is("no such fd", xsk_umem__create_with_fd(&umem, 1000, area, SIZE, &fill, &comp, NULL), -EBADF);

	/* The descriptor is closed with the UMEM. */
	int given = open("/dev/null", O_RDWR);

	is("with fd", xsk_umem__create_with_fd(&umem, given, area, SIZE, &fill, &comp, NULL), 0);
	is("no rings", xsk_socket__create_opts(ifname, 0, umem, NULL) == NULL, 1);
	is("EFAULT", errno, EFAULT);
	is("one ring", xsk_socket__create_opts(ifname, 0, umem, &one) == NULL, 1);
	is("EFAULT", errno, EFAULT);
	is("delete", xsk_umem__delete(umem), 0);
	is("closed", fcntl(given, F_GETFD), -1);
}

int main(int count, char **args)
{
	const char *ifname = count > 1 ? args[1] : "there";
	struct xsk_umem_opts memory = {
		.sz = sizeof(memory), .size = SIZE, .fill_size = 64, .comp_size = 64, .frame_size = FRAME,
		.flags = TX_METADATA_LEN | TX_SW_CSUM, .tx_metadata_len = METADATA,
	};
	struct xsk_socket_opts config = {
		.sz = sizeof(config), .rx = &rx, .tx = &tx, .rx_size = 64, .bind_flags = XDP_USE_NEED_WAKEUP,
	};
	__u32 at = 0;

	area = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	wrong_options(ifname);
	umem = xsk_umem__create_opts(area, &fill, &comp, &memory);
	xsk = umem ? xsk_socket__create_opts(ifname, 0, umem, &config) : NULL;
	if (!xsk) {
		printf("%s\n", strerror(errno));
		return 1;
	}
	is("sizes", fill.size == 64 && comp.size == 64 && rx.size == 64 && tx.size == 2048, 1);
	is("room in FILL", xsk_ring_prod__reserve(&fill, 32, &at), 32);
	for (int i = 0; i < 32; i++)
		*xsk_ring_prod__fill_addr(&fill, at + i) = (FRAMES - 1 - i) * FRAME;
	xsk_ring_prod__submit(&fill, 32);
	checksum();
	refused();
	xsk_socket__delete(xsk);
	is("delete", xsk_umem__delete(umem), 0);
	return failures != 0;
}
