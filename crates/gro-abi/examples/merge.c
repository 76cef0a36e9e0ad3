/* Merges the segments of a TCP stream into super-packets, splits them again, and compares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath_gro.h>

enum { SEGMENTS = 40, PAYLOAD = 1400, HEADERS = 40, ROOM = 65536 };

static uint8_t sent[SEGMENTS][HEADERS + PAYLOAD];

/* A pool of buffers, and what has left the engine. */
struct program {
	uint8_t *pool[SEGMENTS];
	size_t free;
	struct towpath_gro_packet left[SEGMENTS];
	size_t count;
	size_t compared;
};

static void require(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "merge: %s\n", what);
		exit(1);
	}
}

static void put16(uint8_t *at, unsigned value)
{
	at[0] = value >> 8;
	at[1] = value;
}

static uint32_t sum(const uint8_t *bytes, size_t len, uint32_t total)
{
	for (size_t i = 0; i < len; i++)
		total += i & 1 ? bytes[i] : (uint32_t)bytes[i] << 8;
	return total;
}

static unsigned finish(uint32_t total)
{
	while (total >> 16)
		total = (total & 0xffff) + (total >> 16);
	return ~total & 0xffff;
}

/* Segment `n` of a stream from 10.0.0.1 to 10.0.0.2. */
static void make(uint8_t *packet, unsigned n)
{
	static const uint8_t ip[20] = { 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2 };
	uint32_t sequence = 1000 + n * PAYLOAD;

	memset(packet, 0, HEADERS);
	memcpy(packet, ip, sizeof(ip));
	put16(packet + 2, HEADERS + PAYLOAD);
	put16(packet + 4, n);
	put16(packet + 10, finish(sum(packet, 20, 0)));
	put16(packet + 20, 5000);
	put16(packet + 22, 80);
	put16(packet + 24, sequence >> 16);
	put16(packet + 26, sequence & 0xffff);
	packet[32] = 5 << 4;
	packet[33] = 0x10; /* ACK */
	put16(packet + 34, 1024);
	for (unsigned i = 0; i < PAYLOAD; i++)
		packet[HEADERS + i] = n + i * 7;
	put16(packet + 36, finish(sum(packet + 20, 20 + PAYLOAD, sum(packet + 12, 8, 6 + 20 + PAYLOAD))));
}

static void leaves(void *context, const struct towpath_gro_packet *packet)
{
	struct program *program = context;

	program->left[program->count++] = *packet;
}

static void is_spent(void *context, const struct towpath_gro_packet *packet)
{
	struct program *program = context;

	program->pool[program->free++] = packet->data;
}

static void compare(void *context, const uint8_t *bytes, size_t len, const struct towpath_gro_offload *offload)
{
	struct program *program = context;

	require(offload->gso_type == TOWPATH_GRO_NONE, "a segment is an ordinary packet");
	require(len == HEADERS + PAYLOAD && !memcmp(bytes, sent[program->compared++], len), "a segment has changed");
}

int main(void)
{
	static struct program program;
	static uint8_t segment[HEADERS + PAYLOAD];
	struct towpath_gro_packet burst[SEGMENTS];
	struct towpath_gro_sink sink = { leaves, is_spent, &program };
	struct towpath_gro_config config;
	struct towpath_gro_stats stats;

	towpath_gro_config_init(&config);
	config.link = TOWPATH_GRO_IP;
	struct towpath_gro *gro = towpath_gro_new(&config);
	require(gro != NULL, "an engine");

	for (unsigned n = 0; n < SEGMENTS; n++) {
		make(sent[n], n);
		burst[n] = (struct towpath_gro_packet){ .data = malloc(ROOM), .len = sizeof(sent[n]), .capacity = ROOM };
		require(burst[n].data != NULL, "memory");
		memcpy(burst[n].data, sent[n], sizeof(sent[n]));
	}
	require(!towpath_gro_push_and_flush(gro, burst, SEGMENTS, &sink), "packets are taken");
	require(program.count + program.free == SEGMENTS, "each buffer comes back");
	require(towpath_gro_held(gro) == 0, "nothing is held");
	require(!towpath_gro_stats(gro, &stats) && stats.packets == SEGMENTS, "packets are counted");
	require(stats.merged == SEGMENTS - program.count, "merged packets are counted");
	require(program.count == 1, "the stream is one super-packet");

	for (size_t i = 0; i < program.count; i++) {
		struct towpath_gro_packet *packet = &program.left[i];

		require(packet->offload.gso_type == TOWPATH_GRO_TCPV4 && packet->offload.gso_size == PAYLOAD,
			"a super-packet describes its segments");
		require(towpath_gro_split(packet->data, packet->len, TOWPATH_GRO_IP, &packet->offload, 0, segment,
					  sizeof(segment), compare, &program) > 0, "it is split");
		/* What is not true is refused: a buffer that is too short, another transport. */
		require(towpath_gro_split(packet->data, packet->len, TOWPATH_GRO_IP, &packet->offload, 0, segment, 100,
					  compare, &program) == -90, "-EMSGSIZE");
		packet->offload.gso_type = TOWPATH_GRO_UDP_L4;
		require(towpath_gro_split(packet->data, packet->len, TOWPATH_GRO_IP, &packet->offload, 0, segment,
					  sizeof(segment), compare, &program) == -22, "-EINVAL");
		free(packet->data);
	}
	require(program.compared == SEGMENTS, "every segment comes back");

	burst[0].len = burst[0].capacity + 1;
	require(towpath_gro_push(gro, burst, 1, 0, &sink) == -22, "more bytes than the buffer has");
	sink.spent = NULL;
	require(towpath_gro_flush_all(gro, &sink) == -22, "a sink says what becomes of spent buffers");
	config.link = 7;
	require(towpath_gro_new(&config) == NULL, "an unknown link");

	while (program.free > 0)
		free(program.pool[--program.free]);
	towpath_gro_free(gro);
	printf("%d packets, 1 super-packet, %d packets\n", SEGMENTS, SEGMENTS);
	return 0;
}
