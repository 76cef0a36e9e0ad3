/*
 * A usual AF_XDP program: four rings, poll, and the header's inline helpers.
 *
 *   traffic echo IF         returns every frame unchanged
 *   traffic host IF         is the host 10.0.0.2: answers ARP, and returns UDP datagrams to their senders
 *   traffic talk IF N       sends N frames of all lengths, and expects the same back, in order
 *   traffic flood IF        sends as much as it can, and takes all frames;
 *                           writes a ! when the first frames are back
 *   traffic call IF PORT    the same with UDP datagrams of the host 10.0.0.2 from that port to 10.0.0.1:7;
 *                           writes a ! at the first reply
 *
 * Exits with 0 when all expected frames came, or, except for talk, when the other side is gone.
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xdp/xsk.h>

enum { FRAMES = 1024, FRAME = 2048, POSTED = 512, BURST = 64, WINDOW = 64 };

static unsigned char *area;
static struct xsk_umem *umem;
static struct xsk_socket *xsk;
static struct xsk_ring_prod fill, tx;
static struct xsk_ring_cons comp, rx;

/* Frames that no ring has. */
static __u64 idle[FRAMES];
static unsigned int idle_count;
/* Frames to receive into. */
static unsigned int posted;

static void fail(const char *what, int error)
{
	fprintf(stderr, "traffic: %s: %s\n", what, strerror(error < 0 ? -error : error));
	exit(1);
}

/* Posts frames up to that number; the others are for sending. */
static void post(void)
{
	__u32 at, n = POSTED - posted;

	if (n > idle_count)
		n = idle_count;
	if (!n || xsk_ring_prod__reserve(&fill, n, &at) != n)
		return;
	for (__u32 i = 0; i < n; i++)
		*xsk_ring_prod__fill_addr(&fill, at + i) = idle[--idle_count];
	xsk_ring_prod__submit(&fill, n);
	posted += n;
}

static void setup(const char *ifname)
{
	struct xsk_umem_config memory = { .fill_size = POSTED, .comp_size = FRAMES, .frame_size = FRAME };
	struct xsk_socket_config config = {
		.rx_size = POSTED,
		.tx_size = POSTED,
		.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
		.bind_flags = XDP_USE_NEED_WAKEUP,
	};
	void *memory_area;
	int error;

	if (posix_memalign(&memory_area, getpagesize(), (size_t)FRAMES * FRAME))
		fail("posix_memalign", ENOMEM);
	area = memory_area;
	error = xsk_umem__create(&umem, area, (__u64)FRAMES * FRAME, &fill, &comp, &memory);
	if (error)
		fail("xsk_umem__create", error);
	/* Before there is a socket: the rings belong to the UMEM. */
	for (unsigned int i = 0; i < POSTED; i++)
		idle[idle_count++] = (__u64)i * FRAME;
	post();
	for (unsigned int i = POSTED; i < FRAMES; i++)
		idle[idle_count++] = (__u64)i * FRAME;
	/* The session of the program before may still be open. */
	for (int tries = 0; (error = xsk_socket__create(&xsk, ifname, 0, umem, &rx, &tx, &config)); tries++) {
		if (tries == 1000)
			fail("xsk_socket__create", error);
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
}

static void kick(void)
{
	if (!xsk_ring_prod__needs_wakeup(&tx))
		return;
	if (sendto(xsk_socket__fd(xsk), NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY &&
	    errno != ENOBUFS && errno != EPIPE && errno != ECONNRESET)
		fail("sendto", errno);
}

/* Received frames, from at on; the caller releases them. */
static __u32 receive(__u32 most, __u32 *at)
{
	__u32 n = xsk_ring_cons__peek(&rx, most, at);

	posted -= n;
	return n;
}

/* Queues a frame; false if there is no room. */
static bool queue(__u64 addr, __u32 len)
{
	struct xdp_desc *desc;
	__u32 at;

	if (xsk_ring_prod__reserve(&tx, 1, &at) != 1)
		return false;
	desc = xsk_ring_prod__tx_desc(&tx, at);
	desc->addr = addr;
	desc->len = len;
	desc->options = 0;
	xsk_ring_prod__submit(&tx, 1);
	return true;
}

/* Takes completions. */
static unsigned int collect(void)
{
	__u32 at, n = xsk_ring_cons__peek(&comp, FRAMES, &at);

	for (__u32 i = 0; i < n; i++)
		idle[idle_count++] = *xsk_ring_cons__comp_addr(&comp, at + i) & ~(__u64)(FRAME - 1);
	if (n)
		xsk_ring_cons__release(&comp, n);
	return n;
}

enum waited { READY, TIME_OVER, GONE };

/* Waits for frames, for at most that many milliseconds. */
static enum waited wait_for(int events, int most)
{
	struct pollfd wait = { .fd = xsk_socket__fd(xsk), .events = events };
	int n = poll(&wait, 1, most);

	if (n < 0 && errno != EINTR)
		fail("poll", errno);
	if (n > 0 && wait.revents & (POLLHUP | POLLERR))
		return GONE;
	return n ? READY : TIME_OVER;
}

/* Handles a frame; returns whether it is returned to its sender. */
typedef bool answer(unsigned char *frame, __u32 len);

static bool as_it_is(unsigned char *frame, __u32 len)
{
	(void)frame, (void)len;
	return true;
}

static void swap(unsigned char *a, unsigned char *b, int n)
{
	for (int i = 0; i < n; i++) {
		unsigned char c = a[i];

		a[i] = b[i];
		b[i] = c;
	}
}

static bool as_host(unsigned char *frame, __u32 len)
{
	static const unsigned char mac[6] = { 2, 0, 0, 0, 0, 9 }, ip[4] = { 10, 0, 0, 2 };
	bool arp = len >= 42 && frame[12] == 8 && frame[13] == 6 && frame[21] == 1 && !memcmp(frame + 38, ip, 4);
	bool udp = len >= 42 && frame[12] == 8 && frame[13] == 0 && frame[14] == 0x45 && frame[23] == 17 &&
		   !memcmp(frame + 30, ip, 4);

	if (arp) {
		frame[21] = 2;
		memcpy(frame + 32, frame + 22, 10);
		memcpy(frame + 22, mac, 6);
		memcpy(frame + 28, ip, 4);
	} else if (udp) {
		/* Checksums stay the same: addresses and ports only change places. */
		swap(frame + 26, frame + 30, 4);
		swap(frame + 34, frame + 36, 2);
	} else {
		return false;
	}
	memcpy(frame, frame + 6, 6);
	memcpy(frame + 6, mac, 6);
	return true;
}

static int respond(answer *answers)
{
	for (;;) {
		__u32 at, n, sent = 0;

		collect();
		post();
		n = receive(BURST, &at);
		if (!n) {
			if (wait_for(POLLIN, -1) == GONE)
				return 0;
			continue;
		}
		for (__u32 i = 0; i < n; i++) {
			const struct xdp_desc *desc = xsk_ring_cons__rx_desc(&rx, at + i);

			if (!answers(xsk_umem__get_data(area, desc->addr), desc->len)) {
				idle[idle_count++] = desc->addr & ~(__u64)(FRAME - 1);
				continue;
			}
			while (!queue(desc->addr, desc->len)) {
				kick();
				collect();
				if (wait_for(POLLOUT, 1000) == GONE)
					return 0;
			}
			sent++;
		}
		xsk_ring_cons__release(&rx, n);
		if (sent)
			kick();
	}
}

/* Frame number n: its length, and its byte at i. */
static __u32 length(__u32 n)
{
	return 60 + n * 7 % 1400;
}
static unsigned char byte(__u32 n, __u32 i)
{
	return n + i;
}
static bool is_frame(__u32 n, const unsigned char *bytes, __u32 len)
{
	if (len != length(n))
		return false;
	for (__u32 i = 0; i < len; i++)
		if (bytes[i] != byte(n, i))
			return false;
	return true;
}

/* Waits until every frame is idle or posted. None is idle twice. */
static void account_for_all(time_t end)
{
	static bool seen[FRAMES];

	while (idle_count + posted < FRAMES) {
		kick();
		if (!collect() && wait_for(0, 5) == GONE)
			fail("the other side is gone", ENOTCONN);
		if (time(NULL) > end)
			fail("frames that were sent and not completed", ETIMEDOUT);
	}
	if (idle_count + posted > FRAMES)
		fail("frames that were completed twice", EBADMSG);
	for (unsigned int i = 0; i < idle_count; i++) {
		bool *frame = &seen[idle[i] / FRAME % FRAMES];

		if (*frame)
			fail("a frame that was completed twice", EBADMSG);
		*frame = true;
	}
}

static int talk(__u32 count)
{
	__u32 next = 0, seen = 0;
	time_t end = time(NULL) + 60;

	while (seen < count) {
		__u32 at, n;

		collect();
		post();
		/* One at first: the other side may not be there yet. */
		for (; next < count && next - seen < (seen ? WINDOW : 1) && idle_count; next++) {
			__u64 addr = idle[idle_count - 1];

			for (__u32 i = 0; i < length(next); i++)
				area[addr + i] = byte(next, i);
			if (!queue(addr, length(next)))
				break;
			idle_count--;
		}
		kick();
		n = receive(BURST, &at);
		for (__u32 i = 0; i < n; i++) {
			const struct xdp_desc *desc = xsk_ring_cons__rx_desc(&rx, at + i);
			const unsigned char *bytes = xsk_umem__get_data(area, desc->addr);

			if (is_frame(seen, bytes, desc->len))
				seen++;
			else if (!is_frame(0, bytes, desc->len))
				fail("not the frame that was sent", EBADMSG);
			idle[idle_count++] = desc->addr & ~(__u64)(FRAME - 1);
		}
		if (n) {
			xsk_ring_cons__release(&rx, n);
			continue;
		}
		switch (wait_for(POLLIN, 200)) {
		case READY:
			break;
		case TIME_OVER:
			/* Lost frames are sent again; one may come back twice. */
			if (!seen)
				next = 0;
			break;
		case GONE:
			fail("the other side is gone", ENOTCONN);
		}
		if (time(NULL) > end)
			fail("no answer", ETIMEDOUT);
	}
	account_for_all(end);
	return 0;
}

/* Makes every chunk a UDP datagram of 600 bytes; received frames lie behind its headers. */
static void write_datagrams(unsigned int port)
{
	static const unsigned char head[] = {
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 586 >> 8, 586 & 255, 0, 0, 0, 0, 64, 17,
		0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 0, 0, 0, 7, 566 >> 8, 566 & 255, 0, 0,
	};

	for (unsigned int i = 0; i < FRAMES; i++) {
		unsigned char *frame = area + (size_t)i * FRAME;
		__u32 sum = 0;

		memcpy(frame, head, sizeof(head));
		frame[34] = port >> 8;
		frame[35] = port;
		for (int at = 14; at < 34; at += 2)
			sum += frame[at] << 8 | frame[at + 1];
		sum = ~((sum & 0xffff) + (sum >> 16));
		frame[24] = sum >> 8;
		frame[25] = sum;
	}
}

static int flood(unsigned int port)
{
	bool reported = false;

	if (port)
		write_datagrams(port);
	for (;;) {
		__u32 at, n, had = idle_count;

		collect();
		if (!reported && !port && idle_count > had)
			reported = write(2, "!", 1) == 1;
		for (; idle_count > FRAMES / 4 && queue(idle[idle_count - 1], 600); idle_count--)
			;
		kick();
		post();
		n = receive(POSTED, &at);
		if (!reported && port && n)
			reported = write(2, "!", 1) == 1;
		for (__u32 i = 0; i < n; i++)
			idle[idle_count++] = xsk_ring_cons__rx_desc(&rx, at + i)->addr & ~(__u64)(FRAME - 1);
		if (n)
			xsk_ring_cons__release(&rx, n);
		else if (wait_for(POLLIN | POLLOUT, 100) == GONE)
			return 0;
	}
}

int main(int count, char **args)
{
	const char *role = count > 2 ? args[1] : "";
	int code = 2;

	if (count > 2)
		setup(args[2]);
	if (!strcmp(role, "echo"))
		code = respond(as_it_is);
	else if (!strcmp(role, "host"))
		code = respond(as_host);
	else if (!strcmp(role, "talk") && count > 3)
		code = talk(strtoul(args[3], NULL, 10));
	else if (!strcmp(role, "flood"))
		code = flood(0);
	else if (!strcmp(role, "call") && count > 3)
		code = flood(strtoul(args[3], NULL, 10));
	else
		fprintf(stderr, "traffic echo|host|flood IF, traffic talk IF N, traffic call IF PORT\n");
	xsk_socket__delete(xsk);
	if (xsk_umem__delete(umem))
		code = 1;
	free(area);
	return code;
}
