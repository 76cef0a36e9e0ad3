/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Generic receive offload and its inverse, on the program's own buffers.
 *
 *   packets --> towpath_gro_push --> super-packets, each with a virtio-net header --> TUN, TAP, vhost
 *   packets <-- towpath_gro_split <-- super-packets <-- the same
 *
 * The engine keeps no buffer that it was not given, allocates nothing after towpath_gro_new, has no
 * clock and makes no system call. An engine is used by one thread at a time.
 *
 * Functions that can fail return a negative errno: -EINVAL for an argument that breaks a rule,
 * -EMSGSIZE for a buffer that is too short.
 */
#ifndef TOWPATH_GRO_H
#define TOWPATH_GRO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What packets begin with: an Ethernet header, or an IP header as on a TUN device. */
#define TOWPATH_GRO_ETHERNET 0
#define TOWPATH_GRO_IP 1

/* Flags and kinds of struct towpath_gro_offload, those of <linux/virtio_net.h>. */
#define TOWPATH_GRO_NEEDS_CSUM 1
#define TOWPATH_GRO_DATA_VALID 2
#define TOWPATH_GRO_NONE 0
#define TOWPATH_GRO_TCPV4 1
#define TOWPATH_GRO_TCPV6 4
#define TOWPATH_GRO_UDP_L4 5
#define TOWPATH_GRO_ECN 0x80

/* What travels beside a packet: struct virtio_net_hdr, in the machine's byte order, as TUN has it. */
struct towpath_gro_offload {
	uint8_t flags;
	uint8_t gso_type;
	uint16_t hdr_len;
	uint16_t gso_size;
	uint16_t csum_start;
	uint16_t csum_offset;
};

/* How an engine works. towpath_gro_config_init sets the defaults. */
struct towpath_gro_config {
	/* Flows that can be held at a time, at most 32768. */
	uint32_t flows;
	/* The largest aggregate, as its IP header says: up to 65535. */
	uint32_t max_size;
	/* The most packets in an aggregate. UDP never has more than 64. */
	uint16_t max_packets;
	/* TOWPATH_GRO_ETHERNET or TOWPATH_GRO_IP. */
	uint8_t link;
	/* Whether to coalesce UDP. */
	uint8_t udp;
	/* Whether to bypass the engine while nothing merges. */
	uint8_t auto_bypass;
};

/* A packet in a buffer of the program. */
struct towpath_gro_packet {
	/* The first byte. */
	uint8_t *data;
	/* Bytes of the packet. */
	size_t len;
	/* Bytes of the buffer, which are memory from `data` on. Those behind the packet are room for the
	 * payloads of the packets that follow it: 65535 bytes, and a link header, hold any aggregate. */
	size_t capacity;
	struct towpath_gro_offload offload;
	/* For the program: it comes back as it is. */
	void *user;
};

/*
 * Where packets and buffers go. Each packet that was pushed comes back once, by one of the two
 * functions, during a call of push or flush; its buffer is the engine's until then. The functions
 * must not call the engine.
 */
struct towpath_gro_sink {
	/* A packet or super-packet that leaves. */
	void (*packet)(void *context, const struct towpath_gro_packet *packet);
	/* A buffer whose bytes were copied into another one: it is free. */
	void (*spent)(void *context, const struct towpath_gro_packet *packet);
	void *context;
};

/* What an engine has done. */
struct towpath_gro_stats {
	/* Packets that were pushed. */
	uint64_t packets;
	/* Packets that joined an earlier one. */
	uint64_t merged;
	/* Packets that bypassed the engine. */
	uint64_t bypassed;
};

struct towpath_gro;

/* Sets the defaults: Ethernet, 2048 flows, 65535 bytes, 128 packets, UDP, no bypass. */
void towpath_gro_config_init(struct towpath_gro_config *config);

/* Makes an engine; a null pointer if the configuration breaks a rule. `config` may be null: the
 * defaults. */
struct towpath_gro *towpath_gro_new(const struct towpath_gro_config *config);

/* Ends an engine, or does nothing for a null pointer. Buffers of held packets do not come back: the
 * program flushes first. */
void towpath_gro_free(struct towpath_gro *gro);

/*
 * Takes `count` packets in the order in which they came. Complete aggregates leave; others are held
 * until they are flushed. `now` is a time for towpath_gro_flush, in any unit. -EINVAL, and no packet
 * was taken, if one of them has a null pointer, no bytes, more bytes than its buffer, or an offload
 * that cannot be true of it.
 */
int towpath_gro_push(struct towpath_gro *gro, const struct towpath_gro_packet *packets, size_t count,
		     uint64_t now, const struct towpath_gro_sink *sink);

/* Takes a burst, and flushes all. It costs less than both one after the other while little merges. */
int towpath_gro_push_and_flush(struct towpath_gro *gro, const struct towpath_gro_packet *packets,
			       size_t count, const struct towpath_gro_sink *sink);

/* Flushes what was first pushed before `older_than`. */
int towpath_gro_flush(struct towpath_gro *gro, uint64_t older_than, const struct towpath_gro_sink *sink);

/* Flushes everything. */
int towpath_gro_flush_all(struct towpath_gro *gro, const struct towpath_gro_sink *sink);

/* The number of flows with a packet that is held. */
size_t towpath_gro_held(const struct towpath_gro *gro);

/* What the engine has done. */
int towpath_gro_stats(const struct towpath_gro *gro, struct towpath_gro_stats *stats);

/*
 * Splits a super-packet into ordinary packets: each is written to `buffer`, which has `room` bytes,
 * and passed to `segment`. Their checksums are complete, or, with `partial`, left to the egress. An
 * ordinary packet comes out as one, with its checksum completed. Returns their number; -EINVAL,
 * and nothing was passed, if the offload cannot be true of the packet; -EMSGSIZE, likewise, if a
 * segment is longer than `room`.
 */
int towpath_gro_split(const uint8_t *packet, size_t len, uint8_t link,
		      const struct towpath_gro_offload *offload, int partial, uint8_t *buffer, size_t room,
		      void (*segment)(void *context, const uint8_t *bytes, size_t len,
				      const struct towpath_gro_offload *offload),
		      void *context);

#ifdef __cplusplus
}
#endif

#endif
