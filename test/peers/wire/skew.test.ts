import { describe, expect, test } from "bun:test";
import { decodePart, decodeRequest } from "../../../src/peers/wire/index.ts";
import { READERS } from "./arbitrary.ts";
import { CASES, FRAME, goldenBytes, HELLO, PLAIN_FRAME, PULL, sequence } from "./golden-cases.ts";

/** Bytes as the previous and the next version write them. */
const hex = (...parts: string[]) => Uint8Array.fromHex(parts.join("").replaceAll(" ", ""));
const NAMESPACE = sequence(0xc0).toHex();
const DIGEST = sequence(0x20).toHex();
const PARENT = sequence(0x00).toHex();
const FIXED = `${DIGEST} 02000000 0000000000000000 02000000 0000400000000000`;
const KNOWN = `${NAMESPACE} 0700000000000000 1032547698badcfe`;

describe("messages of the previous version", () => {
  const frame = (flags: string, more: string, length: string) =>
    hex("0200 0102 00000000 00000000", FIXED, `0200 ${length}`, flags, KNOWN, more);
  const part = { kind: "frame" as const, index: 0, header: PLAIN_FRAME };

  test("a hello of version 2 is decoded", () => {
    const hello =
      "21000000 06 6770752d3031 efcdab8967452301 03 4000 02 066d6c78355f30 066d6c78355f31";
    const request = decodeRequest(hex("0200 0100 00000000", hello, "00000000"));
    expect(request).toEqual({ ok: true, request: { op: "hello", hello: HELLO } });
  });

  test("a frame has no MAC, but may have a parent", () => {
    expect(decodePart(frame("00000000", "", "3400"))).toEqual({ ok: true, part });
    const header = { ...PLAIN_FRAME, parent: FRAME.parent };
    const withParent = decodePart(frame("01000000", PARENT, "5400"));
    expect(withParent).toEqual({ ok: true, part: { ...part, header } });
    const withMac = decodePart(frame("04000000", FRAME.mac!.toHex(), "4400"));
    expect(withMac).toEqual({ ok: false, why: "frame: a MAC in version 2" });
  });

  test("may not contain later fields", () => {
    expect(decodePart(frame("00000000", "00", "3500")).ok).toBe(false);
    expect(decodePart(frame("00000000", "", "3300").subarray(0, -1)).ok).toBe(false);
  });
});

describe("messages of the next version", () => {
  test("unknown trailing fields are ignored", () => {
    const hello =
      "21000000 06 6770752d3031 efcdab8967452301 03 4000 02 066d6c78355f30 066d6c78355f31";
    const longer = hello.replace("21000000", "24000000");
    const bytes = hex("0400 0100 00000000", `${longer} aabbcc`, "00000000");
    expect(decodeRequest(bytes)).toEqual({ ok: true, request: { op: "hello", hello: HELLO } });
  });

  test("items may be longer", () => {
    const bytes = hex(
      "0400 0200 00000000",
      `29000000 ${NAMESPACE} dc050000 03000000 ee`,
      "02000000",
      `3500 ${DIGEST} ffffffff 0000400000000000 0700000000000000 99`,
      `3400 ${PARENT} 03000000 ffffffff00000000 0000000000000000`,
    );
    expect(decodeRequest(bytes)).toEqual({ ok: true, request: PULL });
  });

  const frame = (flags: string, more: string, length: string) =>
    hex("0400 0102 00000000 00000000", FIXED, `0400 ${length}`, flags, KNOWN, more);

  test("a frame may have unknown fields and optional flags", () => {
    const part = { kind: "frame" as const, index: 0, header: PLAIN_FRAME };
    expect(decodePart(frame("08000000", "aabb", "3600"))).toEqual({ ok: true, part });
    const withParent = decodePart(frame("09000000", `${PARENT} aabb`, "5600"));
    const header = { ...PLAIN_FRAME, parent: FRAME.parent };
    expect(withParent).toEqual({ ok: true, part: { ...part, header } });
  });

  test("an unknown mandatory flag refuses the frame", () => {
    for (const flags of ["00000200", "00000080", "01000200"]) {
      expect(decodePart(frame(flags, PARENT, "5400"))).toEqual({
        ok: false,
        why: "frame: unknown flag",
      });
    }
    const message = hex("0400 0500 00000100", `28000000 ${NAMESPACE} 0500000000000000`, "00000000");
    expect(decodeRequest(message).ok).toBe(false);
    message[6] = 0;
    message[4] = 1;
    expect(decodeRequest(message).ok).toBe(true);
  });

  test("an unknown kind of refusal is a refusal", () => {
    expect(decodePart(hex("0400 0202 00000000 05000000", "0300 09 aabb"))).toEqual({
      ok: true,
      part: {
        kind: "refusal",
        index: 5,
        refusal: { kind: "refused", why: "for an unknown reason" },
      },
    });
  });

  test("an unknown operation is refused, and so are trailing bytes", () => {
    const unknown = hex("0400 0900 00000000 00000000 00000000");
    expect(decodeRequest(unknown)).toEqual({ ok: false, why: "operation: unknown" });
    expect(decodePart(frame("00000000", "", "3400")).ok).toBe(true);
    expect(decodePart(new Uint8Array([...frame("00000000", "", "3400"), 0])).ok).toBe(false);
  });

  test("a message of this version with the next version's number is read", () => {
    for (const { name, reader, value } of CASES) {
      const bytes = goldenBytes(name);
      bytes[0] = 4;
      const at = bytes.toHex().indexOf("03008f0007000100") / 2;
      if (name.startsWith("frame")) bytes[at > 0 ? at : 12 + 56] = 4;
      const read = READERS[reader](bytes);
      expect(read.ok ? read.value : `${name}: ${read.why}`).toEqual(value);
    }
  });
});

test("messages of any other version are refused", () => {
  for (const { name, reader } of CASES) {
    for (const version of [0, 1, 5, 255]) {
      const bytes = goldenBytes(name);
      bytes[0] = version;
      expect(READERS[reader](bytes)).toEqual({ ok: false, why: "version: unsupported" });
    }
  }
});
