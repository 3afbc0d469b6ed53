import { CIPHERS, type Cipher, type LaneSession } from "../../../native/index.ts";
import {
  type Codec,
  type CommonMessage,
  decodeCommon,
  encodeCommon,
  type Field,
  frame,
  isCommon,
} from "../control-channel/index.ts";

/** Messages of a stream control channel, besides the common ones. */
export type StreamMessage =
  /**
   * From the client, first: its accepted ciphers, best first, and the number of lanes that it
   * wants.
   */
  | {
      readonly kind: "hello";
      readonly version: number;
      readonly lanes: number;
      readonly ciphers: readonly Cipher[];
    }
  /** The server's answer: the lanes' session, and where to connect them. */
  | {
      readonly kind: "welcome";
      readonly version: number;
      readonly port: number;
      /** Maximum concurrent requests. */
      readonly requests: number;
      readonly session: LaneSession;
    }
  /**
   * A pull. Its first `announced` items are expected as transfers `transfer`, `transfer + 1`, and
   * so on.
   */
  | {
      readonly kind: "pull";
      readonly id: number;
      readonly transfer: number;
      readonly announced: number;
      readonly body: Uint8Array;
    }
  /**
   * The answer for one item. `sent`: the block's payload follows at once; otherwise it waits for
   * `go`.
   */
  | {
      readonly kind: "part";
      readonly id: number;
      readonly sent: boolean;
      readonly body: Uint8Array;
    }
  | {
      readonly kind: "go";
      readonly id: number;
      readonly index: number;
      readonly transfer: number;
    };

export type ControlMessage = StreamMessage | CommonMessage;
export type ControlKind = ControlMessage["kind"];

/** Byte of each kind; numbers are never reused. */
const CODES: Readonly<Record<StreamMessage["kind"], number>> = {
  hello: 1,
  welcome: 2,
  pull: 5,
  part: 6,
  go: 7,
};
const KINDS = new Map(Object.entries(CODES).map(([kind, code]) => [code, kind]));

export const CONTROL_VERSION = 1;
const SESSION_ID_BYTES = 16;
const SECRET_BYTES = 32;
const NOTHING = new Uint8Array(0);

/** The complete message with its length prefix. */
export function encodeControl(said: ControlMessage): Uint8Array {
  return isCommon(said) ? encodeCommon(said) : frame(CODES[said.kind], ...fieldsOf(said));
}

function fieldsOf(said: StreamMessage): Field[] {
  switch (said.kind) {
    case "hello": {
      const ciphers = said.ciphers.map((cipher) => CIPHERS.indexOf(cipher));
      return [[2, said.version], [1, said.lanes], Uint8Array.from(ciphers)];
    }
    case "welcome": {
      const { session } = said;
      const how: Field[] = [
        [1, CIPHERS.indexOf(session.cipher)],
        [1, session.lanes],
      ];
      const where: Field[] = [
        [2, said.version],
        [2, said.port],
        [2, said.requests],
      ];
      return [...where, ...how, session.id, session.secret];
    }
    case "pull":
      return [[4, said.id], [4, said.transfer], [2, said.announced], said.body];
    case "part":
      return [[4, said.id], [1, said.sent ? 1 : 0], said.body];
    case "go":
      return [
        [4, said.id],
        [2, said.index],
        [4, said.transfer],
      ];
    default:
      throw said satisfies never;
  }
}

/** Size of each kind's fixed fields, and whether variable fields may follow. */
const FIXED: Readonly<Record<StreamMessage["kind"], readonly [bytes: number, more: boolean]>> = {
  hello: [3, true],
  welcome: [8 + SESSION_ID_BYTES + SECRET_BYTES, false],
  pull: [10, true],
  part: [5, true],
  go: [10, false],
};

/** `bytes`: the message without its length prefix. Null: invalid. Fields are views, not copies. */
export function decodeControl(bytes: Uint8Array): ControlMessage | null {
  const common = decodeCommon(bytes);
  if (common !== undefined) return common;
  const kind = KINDS.get(bytes[0] ?? 0) as StreamMessage["kind"] | undefined;
  if (kind === undefined) return null;
  const fields = bytes.subarray(1);
  const [fixed, more] = FIXED[kind];
  if (fields.length < fixed || (!more && fields.length > fixed)) return null;
  const rest = more ? fields.subarray(fixed) : NOTHING;
  const view = new DataView(fields.buffer, fields.byteOffset, fields.length);
  const u16 = (at: number) => view.getUint16(at, true);
  const u32 = (at: number) => view.getUint32(at, true);
  switch (kind) {
    case "hello":
      return helloOf(u16(0), fields[2]!, rest);
    case "welcome":
      return welcomeOf(u16(0), u16(2), u16(4), fields);
    case "pull":
      return { kind, id: u32(0), transfer: u32(4), announced: u16(8), body: rest };
    case "part":
      return fields[4]! > 1 ? null : { kind, id: u32(0), sent: fields[4] === 1, body: rest };
    case "go":
      return { kind, id: u32(0), index: u16(4), transfer: u32(6) };
    default:
      throw kind satisfies never;
  }
}

export const STREAM_CODEC: Codec<StreamMessage> = { encode: encodeControl, decode: decodeControl };

function helloOf(version: number, lanes: number, rest: Uint8Array): ControlMessage | null {
  if (version === 0 || lanes === 0 || rest.length === 0) return null;
  // Unknown ciphers of later versions are ignored.
  if (rest.length > 16) return null;
  const known = [...new Set(rest)].map((code) => CIPHERS[code]);
  return {
    kind: "hello",
    version,
    lanes,
    ciphers: known.filter((cipher) => cipher !== undefined),
  };
}

function welcomeOf(
  version: number,
  port: number,
  requests: number,
  fields: Uint8Array,
): ControlMessage | null {
  const cipher = CIPHERS[fields[6]!];
  const lanes = fields[7]!;
  if (version === 0 || port === 0 || requests === 0) return null;
  if (cipher === undefined || lanes === 0) return null;
  const id = fields.slice(8, 8 + SESSION_ID_BYTES);
  const secret = fields.slice(8 + SESSION_ID_BYTES);
  return { kind: "welcome", version, port, requests, session: { id, secret, cipher, lanes } };
}

/** The ALPN protocol name. */
export const STREAM_PROTOCOL = "hearth-stream/1";
