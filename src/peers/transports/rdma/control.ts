import type { RdmaAddress, RdmaPort } from "../../../native/index.ts";
import {
  bytes,
  checked,
  type Field,
  flag,
  list,
  oneOf,
  positive,
  rest,
  struct,
  u8,
  u16,
  u32,
  u64,
} from "../../wire/index.ts";
import { type CommonMessage, type MessageOf, makeCodec } from "../control-channel/index.ts";

export const CONTROL_VERSION = 1;
/** The ALPN protocol name. */
export const RDMA_PROTOCOL = "hearth-rdma/1";
/** Maximum number of rails of one side, and of queue pairs per connection. */
export const RAILS_MAX = 8;

const MTUS = [256, 512, 1024, 2048, 4096];
const READS_MAX = 255;
const gid = bytes(16);
const u24 = checked(u32, (number) => number < 2 ** 24);
const reads = checked(u16, (count) => count <= READS_MAX);

/** A port's address, as the peer needs it to choose a port that reaches it. */
export type Rail = Pick<RdmaPort, "gid" | "linkLayer" | "isRoceV2">;
const rail: Field<Rail> = struct({
  gid,
  linkLayer: oneOf(["infiniband", "ethernet"]),
  isRoceV2: flag,
});

const address: Field<RdmaAddress> = struct({
  gid,
  queuePair: u24,
  psn: u24,
  lid: u16,
  mtu: checked(u16, (mtu) => MTUS.includes(mtu)),
  readsOut: reads,
  readsIn: reads,
});

/** A queue pair of the server for the client's rail of this index in the hello. */
export interface PairedRail {
  readonly rail: number;
  readonly address: RdmaAddress;
}
const pairs: Field<readonly PairedRail[]> = checked(
  list(struct({ rail: u8, address }), RAILS_MAX),
  (all) => new Set(all.map((pair) => pair.rail)).size === all.length,
);

/** Messages of an RDMA control channel, besides the common ones; codes are never reused. */
const RDMA_MESSAGES = {
  /**
   * From the client, first: its usable rails, best first, and the number of queue pairs that it
   * wants.
   */
  hello: {
    code: 1,
    fields: {
      version: positive(u16),
      wanted: checked(u8, (count) => count > 0 && count <= RAILS_MAX),
      rails: list(rail, RAILS_MAX),
    },
  },
  /**
   * The server's answer: its maximum of concurrent requests, and its queue pairs, each for one of
   * the client's rails.
   */
  welcome: { code: 2, fields: { version: positive(u16), requests: positive(u16), pairs } },
  /** The client's queue pairs, in the order of the welcome's. Requests may follow at once. */
  join: { code: 15, fields: { addresses: list(address, RAILS_MAX) } },
  pull: { code: 5, fields: { id: u32, body: rest } },
  /** The answer for one item, without a block. */
  part: { code: 6, fields: { id: u32, body: rest } },
  /**
   * The answer for one item: its block can be read over this rail (an index into the welcome's
   * pairs).
   */
  lent: {
    code: 16,
    fields: { id: u32, rail: u8, window: struct({ key: u32, address: u64 }), body: rest },
  },
  /** The client does not read the block any more. */
  taken: { code: 17, fields: { id: u32, index: u16 } },
} as const;

export type RdmaMessage = MessageOf<typeof RDMA_MESSAGES>;
export type RdmaControl = RdmaMessage | CommonMessage;
export const RDMA_CODEC = makeCodec(RDMA_MESSAGES);
