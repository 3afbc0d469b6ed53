/**
 * Constants of the wire protocol, version 3. `docs/internals/wire-protocol.md` describes the
 * protocol. All integers are little-endian.
 */

/**
 * Protocol version of messages sent by this host. Received messages may also have the previous or
 * the next version.
 */
export const WIRE_VERSION = 3;

/** Size in bytes of the length prefix of a message. */
export const LENGTH_BYTES = 4;

/** Maximum sizes in bytes of a request and of a reply. */
export const REQUEST_BYTES_MAX = 512 * 1024;
export const ANSWER_BYTES_MAX = 9 * 2 ** 20;
/** Maximum bytes of one part of a pull's reply: a block's header, or a refusal. */
export const PART_BYTES_MAX = 8 * 1024;

/** Maximum number of blocks in one request. */
export const ITEMS_MAX = 4096;
/** Maximum number of names in one `find` request, and of blocks found per name. */
export const FIND_NAMES_MAX = 256;
export const FOUND_MAX = 64;
export const ALIASES_MAX = 8;
export const DEVICES_MAX = 16;

/** Maximum payload bytes of one block, because a payload's length has 32 bits. */
export const PAYLOAD_BYTES_MAX = 2 ** 32 - 1;
export const MODEL_BYTES_MAX = 255;
export const WHY_BYTES_MAX = 512;
export const FILTER_BYTES_MAX = 8 * 2 ** 20 + 64;

export const KEY_BYTES = 32;
export const HASH_BYTES = 8;
export const MAC_BYTES = 16;

/**
 * Message types. The reply to a request has the request's number plus 0x100. Parts of a pull's
 * reply start at 0x200.
 */
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

/** Flag of a pull: the client accepts payload as it is in memory, without compression. */
export const ACCEPTS_RAW = 1;

/**
 * Flags of a block's header. A reader that does not know a flag in the upper half must refuse the
 * block.
 */
export const FrameFlag = { parent: 1, aliases: 2, mac: 4, transient: 0x1_0000 } as const;
export const FRAME_FLAGS =
  FrameFlag.parent | FrameFlag.aliases | FrameFlag.mac | FrameFlag.transient;
export const MUST_UNDERSTAND = 0xffff_0000;

export const HardwareBit = { rdma: 1, aes: 2 } as const;
