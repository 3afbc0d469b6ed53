import type { RdmaAddress, RdmaPort, RdmaWindow } from "../../../native/index.ts";
import {
  type Codec,
  type CommonMessage,
  decodeCommon,
  encodeCommon,
  type Field,
  frame,
  isCommon,
} from "../control-channel/index.ts";

/** A port's address, as the peer needs it to choose a port that reaches it. */
export type Rail = Pick<RdmaPort, "gid" | "linkLayer" | "isRoceV2">;

/** A queue pair of the server for one of the client's rails. */
export interface PairedRail {
  /** Index of the client's rail in the hello. */
  readonly rail: number;
  readonly address: RdmaAddress;
}

/** Messages of an RDMA control channel, besides the common ones. */
export type RdmaMessage =
  /**
   * From the client, first: its usable rails, best first, and the number of queue pairs that it
   * wants.
   */
  | {
      readonly kind: "hello";
      readonly version: number;
      readonly wanted: number;
      readonly rails: readonly Rail[];
    }
  /** The server's answer: its queue pairs, each for one of the client's rails. */
  | {
      readonly kind: "welcome";
      readonly version: number;
      /** Maximum concurrent requests. */
      readonly requests: number;
      readonly pairs: readonly PairedRail[];
    }
  /** The client's queue pairs, in the order of the welcome's. Requests may follow at once. */
  | { readonly kind: "join"; readonly addresses: readonly RdmaAddress[] }
  | { readonly kind: "pull"; readonly id: number; readonly body: Uint8Array }
  /** The answer for one item, without a block. */
  | { readonly kind: "part"; readonly id: number; readonly body: Uint8Array }
  /**
   * The answer for one item: its block can be read over this rail (an index into the welcome's
   * pairs).
   */
  | {
      readonly kind: "lent";
      readonly id: number;
      readonly rail: number;
      readonly window: RdmaWindow;
      readonly body: Uint8Array;
    }
  /** The client does not read the block any more. */
  | { readonly kind: "taken"; readonly id: number; readonly index: number };

export type RdmaControl = RdmaMessage | CommonMessage;
type OwnKind = RdmaMessage["kind"];

/** Byte of each kind; numbers are never reused. */
const CODES: Readonly<Record<OwnKind, number>> = {
  hello: 1,
  welcome: 2,
  pull: 5,
  part: 6,
  join: 15,
  lent: 16,
  taken: 17,
};
const KINDS = new Map(Object.entries(CODES).map(([kind, code]) => [code, kind as OwnKind]));

export const CONTROL_VERSION = 1;
/** Maximum number of rails of one side, and of queue pairs per connection. */
export const RAILS_MAX = 8;
const GID_BYTES = 16;
/** Address, link layer, flags. */
const RAIL_BYTES = GID_BYTES + 2;
const ADDRESS_BYTES = GID_BYTES + 16;
const ROCE_V2 = 1;
const LAYERS = ["infiniband", "ethernet"] as const;
const MTUS = [256, 512, 1024, 2048, 4096];
const NUMBER_24 = 2 ** 24;
const READS_MAX = 255;

/** The complete message with its length prefix. */
export function encodeControl(said: RdmaControl): Uint8Array {
  return isCommon(said) ? encodeCommon(said) : frame(CODES[said.kind], ...fieldsOf(said));
}

function fieldsOf(said: RdmaMessage): Field[] {
  switch (said.kind) {
    case "hello": {
      const { version, wanted, rails } = said;
      return [[2, version], [1, wanted], [1, rails.length], ...rails.flatMap(railFields)];
    }
    case "welcome": {
      const { version, requests, pairs } = said;
      const each = pairs.flatMap(({ rail, address }): Field[] => [
        [1, rail],
        ...addressFields(address),
      ]);
      return [[2, version], [2, requests], [1, pairs.length], ...each];
    }
    case "join":
      return [[1, said.addresses.length], ...said.addresses.flatMap(addressFields)];
    case "pull":
    case "part":
      return [[4, said.id], said.body];
    case "lent": {
      const { id, rail, window, body } = said;
      return [[4, id], [1, rail], [4, window.key], u64(window.address), body];
    }
    case "taken":
      return [
        [4, said.id],
        [2, said.index],
      ];
    default:
      throw said satisfies never;
  }
}

function railFields({ gid, linkLayer, isRoceV2 }: Rail): Field[] {
  return [gid, [1, LAYERS.indexOf(linkLayer)], [1, isRoceV2 ? ROCE_V2 : 0]];
}

function addressFields(address: RdmaAddress): Field[] {
  const { gid, queuePair, psn, lid, mtu, readsOut, readsIn } = address;
  return [gid, [4, queuePair], [4, psn], [2, lid], [2, mtu], [2, readsOut], [2, readsIn]];
}

function u64(value: bigint): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, value, true);
  return bytes;
}

/** Minimum size of each kind. */
const FIXED: Readonly<Record<OwnKind, number>> = {
  hello: 4,
  welcome: 5,
  pull: 4,
  part: 4,
  join: 1,
  lent: 17,
  taken: 6,
};

/** `bytes`: the message without its length prefix. Null: invalid. Bodies are views. */
export function decodeControl(bytes: Uint8Array): RdmaControl | null {
  const common = decodeCommon(bytes);
  if (common !== undefined) return common;
  const kind = KINDS.get(bytes[0] ?? 0);
  if (kind === undefined || bytes.length - 1 < FIXED[kind]) return null;
  const fields = bytes.subarray(1);
  const view = new DataView(fields.buffer, fields.byteOffset, fields.length);
  const u16 = (at: number) => view.getUint16(at, true);
  const u32 = (at: number) => view.getUint32(at, true);
  switch (kind) {
    case "hello":
      return helloOf(u16(0), fields);
    case "welcome":
      return welcomeOf(u16(0), u16(2), fields);
    case "join": {
      const addresses = each(fields, 1, fields[0]!, ADDRESS_BYTES, addressOf);
      return addresses === null ? null : { kind, addresses };
    }
    case "pull":
    case "part":
      return { kind, id: u32(0), body: fields.subarray(4) };
    case "lent": {
      const window = { key: u32(5), address: view.getBigUint64(9, true) };
      return { kind, id: u32(0), rail: fields[4]!, window, body: fields.subarray(17) };
    }
    case "taken":
      return fields.length > FIXED.taken ? null : { kind, id: u32(0), index: u16(4) };
    default:
      throw kind satisfies never;
  }
}

export const RDMA_CODEC: Codec<RdmaMessage> = { encode: encodeControl, decode: decodeControl };

function helloOf(version: number, fields: Uint8Array): RdmaMessage | null {
  const wanted = fields[2]!;
  if (version === 0 || wanted === 0 || wanted > RAILS_MAX) return null;
  const rails = each(fields, 4, fields[3]!, RAIL_BYTES, railOf);
  return rails === null ? null : { kind: "hello", version, wanted, rails };
}

function welcomeOf(version: number, requests: number, fields: Uint8Array): RdmaMessage | null {
  if (version === 0 || requests === 0) return null;
  const pairs = each(fields, 5, fields[4]!, 1 + ADDRESS_BYTES, (record): PairedRail | null => {
    const address = addressOf(record.subarray(1));
    return address === null ? null : { rail: record[0]!, address };
  });
  if (pairs === null || new Set(pairs.map(({ rail }) => rail)).size < pairs.length) return null;
  return { kind: "welcome", version, requests, pairs };
}

/** Reads `count` records, 1 to 8, up to the end. Null: invalid. */
function each<T>(
  fields: Uint8Array,
  from: number,
  count: number,
  bytes: number,
  read: (record: Uint8Array) => T | null,
): T[] | null {
  if (count === 0 || count > RAILS_MAX || fields.length !== from + count * bytes) return null;
  const all: T[] = [];
  for (let at = from; at < fields.length; at += bytes) {
    const one = read(fields.subarray(at, at + bytes));
    if (one === null) return null;
    all.push(one);
  }
  return all;
}

function railOf(record: Uint8Array): Rail | null {
  const linkLayer = LAYERS[record[GID_BYTES]!];
  const flags = record[GID_BYTES + 1]!;
  if (linkLayer === undefined || flags > ROCE_V2) return null;
  return { gid: record.slice(0, GID_BYTES), linkLayer, isRoceV2: flags === ROCE_V2 };
}

function addressOf(record: Uint8Array): RdmaAddress | null {
  const view = new DataView(record.buffer, record.byteOffset, record.length);
  const u16 = (at: number) => view.getUint16(at, true);
  const [queuePair, psn] = [view.getUint32(16, true), view.getUint32(20, true)];
  const [lid, mtu, readsOut, readsIn] = [u16(24), u16(26), u16(28), u16(30)];
  const isFair = queuePair < NUMBER_24 && psn < NUMBER_24 && MTUS.includes(mtu);
  if (!isFair || readsOut > READS_MAX || readsIn > READS_MAX) return null;
  return { gid: record.slice(0, GID_BYTES), queuePair, psn, lid, mtu, readsOut, readsIn };
}

/** The ALPN protocol name. */
export const RDMA_PROTOCOL = "hearth-rdma/1";
