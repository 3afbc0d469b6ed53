import { assert } from "../../core/index.ts";
import type { FrameHeader } from "../messages.ts";
import {
  ALIASES_MAX,
  FRAME_FLAGS,
  FrameFlag,
  KEY_BYTES,
  MAC_BYTES,
  MODEL_BYTES_MAX,
  PAYLOAD_BYTES_MAX,
  WIRE_VERSION,
} from "./layout.ts";
import { isName, readName } from "./requests.ts";
import type { WireReader } from "./wire-reader.ts";
import { utf8Bytes, type WireWriter } from "./wire-writer.ts";

/** `layer` comes twice: as part of the address, and as a field of the frame. */
export function writeFrame(writer: WireWriter, header: FrameHeader): void {
  const { digest, layer, bytes, namespace, generation, checksum, parent, aliases, mac } = header;
  const model = utf8Bytes(header.model);
  assert(model.length <= MODEL_BYTES_MAX, `a model's name has ${MODEL_BYTES_MAX} bytes at most`);
  assert(bytes > 0 && bytes <= PAYLOAD_BYTES_MAX, "a payload's length has 32 bits");
  assert(aliases.length <= ALIASES_MAX, `at most ${ALIASES_MAX} aliases are told`);
  writer.fixed(digest, KEY_BYTES).u32(layer);
  writer.size(model.length).raw(model);
  writer.u32(layer).size(bytes);
  const flags =
    (parent === null ? 0 : FrameFlag.parent) |
    (aliases.length === 0 ? 0 : FrameFlag.aliases) |
    (mac === null ? 0 : FrameFlag.mac) |
    (header.transient ? FrameFlag.transient : 0);
  writer.u16(WIRE_VERSION).record(16, () => {
    writer.u32(flags).fixed(namespace, KEY_BYTES).u64(generation).u64(checksum);
    if (parent !== null) writer.fixed(parent, KEY_BYTES);
    if (aliases.length > 0) writeAliases(writer, aliases);
    if (mac !== null) writer.fixed(mac, MAC_BYTES);
  });
}

function writeAliases(writer: WireWriter, aliases: readonly Uint8Array[]): void {
  writer.u8(aliases.length);
  for (const alias of aliases) {
    assert(isName(alias), "an alias has 8 or 32 bytes");
    writer.u8(alias.length).raw(alias);
  }
}

export function readFrame(reader: WireReader): FrameHeader {
  const digest = reader.bytes(KEY_BYTES, "digest");
  const layer = reader.u32("layer");
  const model = reader.utf8(reader.size(MODEL_BYTES_MAX, "model"), "model");
  if (reader.u32("layer") !== layer) reader.fail("layer: two that differ");
  const bytes = reader.size(PAYLOAD_BYTES_MAX, "payload");
  if (bytes === 0) reader.fail("payload: empty");
  reader.sameVersion("frame's version");
  const extension = reader.record(16, "extension", () => {
    const flags = reader.flags(FRAME_FLAGS, "frame");
    if ((flags & FrameFlag.mac) !== 0 && !reader.since(3)) reader.fail("frame: a MAC in version 2");
    return {
      namespace: reader.bytes(KEY_BYTES, "namespace"),
      generation: reader.u64("generation"),
      checksum: reader.u64("checksum"),
      parent: (flags & FrameFlag.parent) === 0 ? null : reader.bytes(KEY_BYTES, "parent"),
      transient: (flags & FrameFlag.transient) !== 0,
      aliases: (flags & FrameFlag.aliases) === 0 ? [] : readAliases(reader),
      mac: (flags & FrameFlag.mac) === 0 ? null : reader.bytes(MAC_BYTES, "MAC"),
    };
  });
  return { digest, layer, model, bytes, ...extension };
}

function readAliases(reader: WireReader): Uint8Array[] {
  const count = reader.u8("aliases");
  if (count === 0 || count > ALIASES_MAX) reader.fail(`aliases: not 1 to ${ALIASES_MAX}`);
  const aliases: Uint8Array[] = [];
  for (let i = 0; i < count && reader.ok; i++) aliases.push(readName(reader, "alias"));
  return aliases;
}
