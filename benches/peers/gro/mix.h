// The packet mix of engines/src/mix.rs, byte for byte; `run` compares the digests of the two.
//
// TCP over IPv4 with timestamps, DF, right checksums. Flows take turns. A round is what is pushed between two flushes; in it
// the sequence numbers and identifications of each flow count up; the next round goes on with the flows that come next.
#pragma once
#include <stdint.h>
#include <string.h>

enum { ETHERNET = 14, IP_TCP = 20 + 32, HEADER = ETHERNET + IP_TCP };

static void put16(uint8_t *p, uint32_t v) { p[0] = v >> 8; p[1] = v; }
static void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16); put16(p + 2, v); }

static uint32_t sum(const uint8_t *p, unsigned n, uint32_t s) {
    for (unsigned i = 0; i + 1 < n; i += 2) s += p[i] << 8 | p[i + 1];
    return n & 1 ? s + (p[n - 1] << 8) : s;
}

static uint16_t checksum(uint32_t s) {
    while (s >> 16) s = (s & 0xffff) + (s >> 16);
    return ~s;
}

// Writes packet `index` of `flow` and returns its length.
static unsigned packet(uint8_t *b, uint32_t flow, uint32_t index, unsigned payload) {
    static const uint8_t ethernet[ETHERNET] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0};
    static const uint8_t timestamp[12] = {1, 1, 8, 10, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88};
    memset(b, 0, HEADER);
    memcpy(b, ethernet, ETHERNET);
    uint8_t *ip = b + ETHERNET, *tcp = ip + 20;
    ip[0] = 0x45;
    put16(ip + 2, IP_TCP + payload);
    put16(ip + 4, flow * 977 + index);
    ip[6] = 0x40, ip[8] = 64, ip[9] = 6;
    put32(ip + 12, 0x0a000001 + (flow & 3));
    put32(ip + 16, 0x0a010001);
    put16(ip + 10, checksum(sum(ip, 20, 0)));
    put16(tcp, 10000 + flow);
    put16(tcp + 2, 5201);
    put32(tcp + 4, 0x10000000 + flow * 7919 + index * payload);
    put32(tcp + 8, 0x22222222 + flow);
    tcp[12] = 0x80, tcp[13] = 0x10;
    put16(tcp + 14, 501);
    memcpy(tcp + 20, timestamp, sizeof timestamp);
    for (unsigned i = 0; i < payload; i++) tcp[32 + i] = i * 7;
    put16(tcp + 16, checksum(sum(tcp, 32 + payload, sum(ip + 12, 8, 6 + 32 + payload))));
    return HEADER + payload;
}

// FNV-1a over the IP packets.
static uint64_t digest(uint64_t state, const uint8_t *p, unsigned n) {
    while (n--) state = (state ^ *p++) * 0x100000001b3;
    return state;
}
