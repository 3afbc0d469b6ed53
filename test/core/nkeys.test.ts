import { expect, test } from "bun:test";
import { nkeys } from "@nats-io/transport-node";
import { publicUserKey, userOfSeed } from "../../src/core/index.ts";

const decode = (bytes: Uint8Array) => new TextDecoder().decode(bytes);

test("seeds give the keys and signatures that the library gives", () => {
  for (let round = 0; round < 5; round++) {
    const theirs = nkeys.createUser();
    const ours = userOfSeed(decode(theirs.getSeed()))!;
    expect(ours.publicKey).toBe(theirs.getPublicKey());
    const nonce = `nonce ${round}`;
    const signature = theirs.sign(new TextEncoder().encode(nonce));
    expect(ours.sign(nonce)).toBe(Buffer.from(signature).toString("base64url"));
  }
});

test("a string that is not a user seed is rejected", () => {
  const seed = decode(nkeys.createUser().getSeed());
  const others = [nkeys.createAccount(), nkeys.createOperator()].map((key) =>
    decode(key.getSeed()),
  );
  const flipped = `${seed.slice(0, 20)}${seed[20] === "A" ? "B" : "A"}${seed.slice(21)}`;
  for (const wrong of ["", "SU", flipped, seed.toLowerCase(), seed.slice(1), ...others]) {
    expect(userOfSeed(wrong)).toBeNull();
  }
});

test("a public key verifies its own signatures and no other", () => {
  const ours = userOfSeed(decode(nkeys.createUser().getSeed()))!;
  const other = userOfSeed(decode(nkeys.createUser().getSeed()))!;
  const key = publicUserKey(ours.publicKey)!;
  const message = new TextEncoder().encode("hello");
  const signature = ours.sign(message);
  expect(key.verify(message, signature)).toBe(true);
  expect(key.verify(new TextEncoder().encode("hellO"), signature)).toBe(false);
  expect(key.verify(message, other.sign(message))).toBe(false);
  const wrong = ["", "A", "\0", `${signature}=`, `${signature}\n`, ` ${signature}`, "A".repeat(86)];
  for (const text of [...wrong, signature.slice(1), signature.repeat(1_000)]) {
    expect(key.verify(message, text)).toBe(false);
  }
  // The last character has four bits that no byte takes: another spelling is refused.
  const last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const spelled = last[last.indexOf(signature.at(-1)!) + 1];
  if (spelled !== undefined) {
    expect(key.verify(message, signature.slice(0, -1) + spelled)).toBe(false);
  }
});

test("text that is not a user's public key is refused", () => {
  const text = userOfSeed(decode(nkeys.createUser().getSeed()))!.publicKey;
  const account = nkeys.createAccount().getPublicKey();
  const flipped = `${text.slice(0, 20)}${text[20] === "A" ? "B" : "A"}${text.slice(21)}`;
  for (const wrong of ["", "U", account, flipped, text.toLowerCase(), `${text}A`, text.slice(1)]) {
    expect(publicUserKey(wrong)).toBeNull();
  }
});
