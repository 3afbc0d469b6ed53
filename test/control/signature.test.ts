import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { JSON_TYPE, MSGPACK_TYPE, signCommand, signedBytes } from "../../src/control/index.ts";
import { publicUserKey, userOfSeed } from "../../src/core/index.ts";

const page = readFileSync(join(import.meta.dir, "../../docs/commands.md"), "utf8");
/** What stands behind the row's name in the table of the page. */
const cellOf = (row: string) =>
  new RegExp(`^\\| ${row} \\| \`([^\`]+)\` \\|$`, "m").exec(page)![1]!;

test("the vector of docs/commands.md is what is signed, and its signature", () => {
  const seed = cellOf("seed");
  const body = new TextEncoder().encode(cellOf("body"));
  const user = userOfSeed(seed)!;
  expect(user.publicKey).toBe(cellOf("public key"));
  const bytes = signedBytes(cellOf("worker"), JSON_TYPE, body);
  expect(Buffer.from(bytes).toString("hex")).toBe(cellOf("bytes, in hex"));
  const signature = signCommand(user, cellOf("worker"), JSON_TYPE, body);
  expect(signature).toBe(cellOf("`Hearth-Signature`"));
  expect(publicUserKey(user.publicKey)!.verify(bytes, signature)).toBe(true);
});

test("the media type, the worker and the body are told apart", () => {
  const body = new TextEncoder().encode("x");
  const all = [
    signedBytes("a", JSON_TYPE, body),
    signedBytes("a", MSGPACK_TYPE, body),
    signedBytes("b", JSON_TYPE, body),
    signedBytes("a", JSON_TYPE, new TextEncoder().encode("y")),
    signedBytes("a", JSON_TYPE, new Uint8Array()),
  ];
  expect(new Set(all.map((bytes) => Buffer.from(bytes).toString("hex"))).size).toBe(all.length);
});
