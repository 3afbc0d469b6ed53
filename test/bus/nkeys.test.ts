import { expect, test } from "bun:test";
import { nkeys } from "@nats-io/transport-node";
import { userOfSeed } from "../../src/bus/nats/index.ts";

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

test("what is no seed of a user is none", () => {
  const seed = decode(nkeys.createUser().getSeed());
  const others = [nkeys.createAccount(), nkeys.createOperator()].map((key) =>
    decode(key.getSeed()),
  );
  const flipped = `${seed.slice(0, 20)}${seed[20] === "A" ? "B" : "A"}${seed.slice(21)}`;
  for (const wrong of ["", "SU", flipped, seed.toLowerCase(), seed.slice(1), ...others]) {
    expect(userOfSeed(wrong)).toBeNull();
  }
});
