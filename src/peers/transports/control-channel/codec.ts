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

/** Message for people: takes up the remaining bytes, truncated to the maximum size. */
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

/** Encoding of one kind of message: a byte that identifies the kind, then the fields in order. */
interface Kind {
  readonly code: number;
  readonly fields: Fields;
}
type Messages = Readonly<Record<string, Kind>>;

/** The messages that a table of kinds describes. */
export type MessageOf<M extends Messages> = {
  [Name in keyof M]: { readonly kind: Name } & Struct<M[Name]["fields"]>;
}[keyof M];

/**
 * Kinds of messages that all transports share. Codes are never reused. `body` is a request or reply
 * in the format of `src/peers/wire`.
 */
const COMMON = {
  call: { code: 3, fields: { id: u32, body: rest } },
  answer: { code: 4, fields: { id: u32, body: rest } },
  /** The server has sent a block's header, but will not send the block. */
  lost: { code: 8, fields: { id: u32, index: u16 } },
  /** The server did not start the pull because it is busy. */
  busy: { code: 9, fields: { id: u32, retryAfterMs: u32 } },
  /** The server will not answer the remaining items of a pull, because of this fault. */
  end: { code: 10, fields: { id: u32, fault: oneOf(CONNECTION_FAULTS), why: reason } },
  cancel: { code: 11, fields: { id: u32 } },
  ping: { code: 12, fields: { nonce: u32 } },
  pong: { code: 13, fields: { nonce: u32 } },
  /** Last message on a connection: the reason why the sender ends it. */
  bye: { code: 14, fields: { fault: oneOf(CONNECTION_FAULTS), why: reason } },
} as const satisfies Messages;

/** A message that only one transport defines. If it has an `id`, it belongs to that pull. */
export interface OwnMessage {
  readonly kind: string;
  readonly id?: number;
}

export type CommonMessage = MessageOf<typeof COMMON>;

export function isCommon(message: { readonly kind: string }): message is CommonMessage {
  return message.kind in COMMON;
}

/** Encodes and decodes the messages of one transport, including those that all transports share. */
export interface Codec<Own> {
  /**
   * Encodes a message completely: `length u32, code u8, fields`. The length does not include
   * itself.
   */
  encode(message: Own | CommonMessage): Uint8Array;
  /**
   * Decodes a message without its length prefix. Null if it is invalid. `body` fields are views of
   * `bytes`.
   */
  decode(bytes: Uint8Array): Own | CommonMessage | null;
}

/** Usual maximum size in bytes of a message's fields other than `body`. */
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
