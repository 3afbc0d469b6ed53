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
/** ALPN protocol name in the TLS handshake. */
export const RDMA_PROTOCOL = "hearth-rdma/1";
/** Maximum number of ports ("rails") that one side offers, and of queue pairs per connection. */
export const RAILS_MAX = 8;

const MTUS = [256, 512, 1024, 2048, 4096];
const READS_MAX = 255;
const gid = bytes(16);
const u24 = checked(u32, (number) => number < 2 ** 24);
const reads = checked(u16, (count) => count <= READS_MAX);

/**
 * Addresses of a port of one host, from which the other host decides which of its ports can reach
 * it.
 */
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

/**
 * Queue pair that the server created for one of the client's ports. `rail`: index of that port in
 * the client's hello.
 */
export interface PairedRail {
  readonly rail: number;
  readonly address: RdmaAddress;
}
const pairs: Field<readonly PairedRail[]> = checked(
  list(struct({ rail: u8, address }), RAILS_MAX),
  (all) => new Set(all.map((pair) => pair.rail)).size === all.length,
);

/** Messages that only the RDMA transport defines. Codes are never reused. */
const RDMA_MESSAGES = {
  /**
   * First message, from the client: its usable ports, best first, and the number of queue pairs
   * that it wants.
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
   * The server's reply to the hello: the maximum number of concurrent requests, and the server's
   * queue pairs, each for one of the client's ports.
   */
  welcome: { code: 2, fields: { version: positive(u16), requests: positive(u16), pairs } },
  /**
   * Addresses of the client's queue pairs, in the order of the pairs in the welcome. The client may
   * send requests directly after this message.
   */
  join: { code: 15, fields: { addresses: list(address, RAILS_MAX) } },
  pull: { code: 5, fields: { id: u32, body: rest } },
  /** From the server: refusal of one block. */
  part: { code: 6, fields: { id: u32, body: rest } },
  /**
   * From the server: header of one block, and the address at which the client can read its payload.
   * `rail`: index of the queue pair in the welcome.
   */
  lent: {
    code: 16,
    fields: { id: u32, rail: u8, window: struct({ key: u32, address: u64 }), body: rest },
  },
  /** From the client: it does not read this block any more, so the server can release it. */
  taken: { code: 17, fields: { id: u32, index: u16 } },
} as const;

export type RdmaMessage = MessageOf<typeof RDMA_MESSAGES>;
export type RdmaControl = RdmaMessage | CommonMessage;
export const RDMA_CODEC = makeCodec(RDMA_MESSAGES);
