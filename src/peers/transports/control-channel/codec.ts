import { CONNECTION_FAULTS } from "../../transport.ts";
import {
  type Field,
  type Fields,
  oneOf,
  rest,
  type Struct,
  struct,
  u16,
  u32,
  WireReader,
  WireWriter,
} from "../../wire/index.ts";

const WHY_BYTES_MAX = 255;
const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The remaining bytes: a reason for the peer, truncated to the limit of the message. */
const reason: Field<string> = {
  write(writer, text) {
    const buffer = new Uint8Array(WHY_BYTES_MAX);
    writer.raw(buffer.subarray(0, new TextEncoder().encodeInto(text, buffer).written));
  },
  read(reader) {
    const buffer = reader.rest();
    try {
      if (buffer.length <= WHY_BYTES_MAX) return strictUtf8.decode(buffer);
    } catch (thrown) {
      if (!(thrown instanceof TypeError)) throw thrown;
    }
    reader.fail("reason is not text, or too long");
    return "";
  },
};

/** A kind of message: the byte that names it, and its fields in order. */
interface Kind {
  readonly code: number;
  readonly fields: Fields;
}
type Messages = Readonly<Record<string, Kind>>;

/** The messages that a table describes. */
export type MessageOf<M extends Messages> = {
  [Name in keyof M]: { readonly kind: Name } & Struct<M[Name]["fields"]>;
}[keyof M];

/**
 * Messages that all transports share; codes are never reused. `body` is encoded by the common wire
 * codec.
 */
const COMMON = {
  call: { code: 3, fields: { id: u32, body: rest } },
  answer: { code: 4, fields: { id: u32, body: rest } },
  /** A block whose header was sent will not be sent. */
  lost: { code: 8, fields: { id: u32, index: u16 } },
  /** The pull was not started because the server is busy. */
  busy: { code: 9, fields: { id: u32, retryAfterMs: u32 } },
  /** The remaining items of a pull will not be answered. */
  end: { code: 10, fields: { id: u32, fault: oneOf(CONNECTION_FAULTS), why: reason } },
  cancel: { code: 11, fields: { id: u32 } },
  ping: { code: 12, fields: { nonce: u32 } },
  pong: { code: 13, fields: { nonce: u32 } },
  /** The last message: the reason this side ends the connection. */
  bye: { code: 14, fields: { fault: oneOf(CONNECTION_FAULTS), why: reason } },
} as const satisfies Messages;

/** A message of one transport; one with a number belongs to a pull. */
export interface OwnMessage {
  readonly kind: string;
  readonly id?: number;
}

export type CommonMessage = MessageOf<typeof COMMON>;

export function isCommon(message: { readonly kind: string }): message is CommonMessage {
  return message.kind in COMMON;
}

/** Encodes a transport's own messages and the common ones. */
export interface Codec<Own> {
  /** The complete message: `length u32, code u8, fields`. The length counts the bytes after it. */
  encode(message: Own | CommonMessage): Uint8Array;
  /** `bytes`: the message without its length prefix. Null: invalid. Bodies are views. */
  decode(bytes: Uint8Array): Own | CommonMessage | null;
}

/** Size of a message without its body, at most as a rule. */
const AROUND_BYTES = 64;

export function makeCodec<M extends Messages>(own: M): Codec<MessageOf<M>> {
  const all = Object.entries({ ...COMMON, ...own }).map(([kind, { code, fields }]) => {
    return { kind, code, fields: struct(fields as Fields) };
  });
  const byKind = new Map(all.map((one) => [one.kind, one]));
  const byCode = new Map(all.map((one) => [one.code, one]));
  return {
    encode(message) {
      const { code, fields } = byKind.get(message.kind as string)!;
      const { body } = message as { readonly body?: Uint8Array };
      const writer = new WireWriter(AROUND_BYTES + (body?.length ?? 0));
      return writer.record(32, () => fields.write(writer.u8(code), message)).done();
    },
    decode(bytes) {
      const reader = new WireReader(bytes);
      const found = byCode.get(reader.u8("code"));
      if (found === undefined) return null;
      const { kind } = found;
      const message = { kind, ...found.fields.read(reader, kind) };
      reader.end("message");
      return reader.ok ? (message as unknown as MessageOf<M>) : null;
    },
  };
}
