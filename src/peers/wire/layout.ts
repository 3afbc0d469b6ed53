/**
 * The numbers of what peers say to each other, version 3. `docs/wire-protocol.md` has the same in
 * prose. Every integer is little-endian.
 */

/** Of what is written here; one more and one less are read, too. */
export const WIRE_VERSION = 3;

/** Length of a message, in front of it. */
export const LENGTH_BYTES = 4;

/** Caps on whole messages, in bytes: what a reader has to keep of one. */
export const REQUEST_BYTES_MAX = 512 * 1024;
export const ANSWER_BYTES_MAX = 9 * 2 ** 20;
/** Of what stands in front of a block's payload, or in its place. */
export const PART_BYTES_MAX = 8 * 1024;

/** Blocks in one request. */
export const ITEMS_MAX = 4096;
/** Names in one `find`, and what each may lead to. */
export const FIND_NAMES_MAX = 256;
export const FOUND_MAX = 64;
export const ALIASES_MAX = 8;
export const DEVICES_MAX = 16;

/** Of one block: its length has to fit in 32 bits everywhere. */
export const PAYLOAD_BYTES_MAX = 2 ** 32 - 1;
export const MODEL_BYTES_MAX = 255;
export const WHY_BYTES_MAX = 512;
export const FILTER_BYTES_MAX = 8 * 2 ** 20 + 64;

export const KEY_BYTES = 32;
export const HASH_BYTES = 8;
export const MAC_BYTES = 16;

/** What a message is. Answers have the number of their request and bit 8; parts of a pull bit 9. */
export const Op = {
  hello: 0x001,
  pull: 0x002,
  has: 0x003,
  find: 0x004,
  summary: 0x005,
  helloAnswer: 0x101,
  hasAnswer: 0x103,
  findAnswer: 0x104,
  summaryAnswer: 0x105,
  busyAnswer: 0x110,
  refusedAnswer: 0x111,
  frame: 0x201,
  refusal: 0x202,
} as const;

/** Payload as it lies in memory: what a request says it accepts. */
export const ACCEPTS_RAW = 1;

/** Flags of a frame. Whoever does not know a bit of the upper half refuses the frame. */
export const FrameFlag = { parent: 1, aliases: 2, mac: 4, transient: 0x1_0000 } as const;
export const FRAME_FLAGS =
  FrameFlag.parent | FrameFlag.aliases | FrameFlag.mac | FrameFlag.transient;
export const MUST_UNDERSTAND = 0xffff_0000;

export const HardwareBit = { rdma: 1, aes: 2 } as const;

export const RefusalKind = { absent: 0, busy: 1, tooLong: 2, refused: 3 } as const;
