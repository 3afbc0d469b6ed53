import { describe, expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { systemClock } from "../../../src/core/index.ts";
import {
  type AuthResult,
  basicConstraints,
  commonName,
  createTrust,
  decodePem,
  extension,
  keyUsage,
  OID,
} from "../../../src/peers/index.ts";
import { BAD_CREDENTIALS } from "../../certs/bad-credentials.ts";
import {
  authority,
  authorityOf,
  credentialsWith,
  forge,
  goodNames,
  type Signer,
} from "../../certs/forge.ts";
import { ManualClock, makeCluster } from "../../support/index.ts";

const A = "node-a" as WorkerId;
const cluster = makeCluster(null);
const trust = cluster.trust("judge");

function derOf(pem: string): Uint8Array {
  return decodePem("CERTIFICATE", pem)[0]!;
}

function wordsOf(authorized: AuthResult): string {
  return authorized.ok ? "good" : authorized.why;
}

describe("a certificate is refused:", () => {
  for (const bad of BAD_CREDENTIALS) {
    test(bad.name, () => {
      const der = derOf(bad.make(cluster, A).certificates);
      const called = trust.authorize(der, A);
      const calling = trust.authorize(der, null);
      if (bad.verdict === null) {
        expect([called.ok, calling.ok]).toEqual([true, true]);
        return;
      }
      expect(wordsOf(called)).toMatch(bad.verdict);
      expect(wordsOf(called)).toMatch(/^[ -~]+$/);
      expect(calling.ok).toBe(bad.shownBy === "host");
    });
  }

  test("trailing bytes, missing bytes, empty, and far too long", () => {
    const der = derOf(cluster.host(A).certificates);
    expect(trust.authorize(der, A).ok).toBe(true);
    const inputs = [
      Uint8Array.of(...der, 0),
      der.subarray(0, -1),
      new Uint8Array(),
      new Uint8Array(1e6),
    ];
    for (const input of inputs) expect(trust.authorize(input, A).ok).toBe(false);
  });

  test("any byte changed", () => {
    const der = derOf(cluster.host(A).certificates);
    for (let at = 0; at < der.length; at++) {
      const copy = der.slice();
      copy[at]! ^= 1 << (at % 8);
      expect([at, trust.authorize(copy, A).ok]).toEqual([at, false]);
    }
  });
});

describe("time", () => {
  test("a valid certificate expires, and so does its authority", () => {
    const clock = new ManualClock(systemClock.wallMs());
    const authorize = createTrust(cluster.host("judge"), clock);
    const der = derOf(cluster.host(A).certificates);
    const { notAfterMs } = cluster.host(A);
    expect(authorize.authorize(der, A).ok).toBe(true);
    clock.jumpWall(notAfterMs - clock.wallMs() + 2_000);
    expect(wordsOf(authorize.authorize(der, A))).toMatch(/^it expired at/);
    const long = forge(cluster, A, {
      validity: { notBeforeMs: 0, notAfterMs: notAfterMs * 2 },
    });
    expect(authorize.authorize(derOf(long.certificate), A).ok).toBe(true);
    clock.jumpWall(60 * 86_400_000);
    expect(wordsOf(authorize.authorize(derOf(long.certificate), A))).toBe(
      "no authority of this cluster signed it",
    );
  });
});

describe("an intermediate authority", () => {
  const root = authority(cluster, "root", 1, "self");
  const between = authority(cluster, "between", null, root);
  const rooted = { ...cluster, authority: root };
  const hostBelow = (signer: Signer, chain: string, worker: string) =>
    credentialsWith(rooted, worker, forge(cluster, worker, { signer }), chain);

  test("is accepted if it is in our own chain or list", () => {
    const der = derOf(hostBelow(between, "", A).certificates);
    const ours = hostBelow(between, between.certificate, "judge");
    expect(createTrust(ours, systemClock).authorize(der, A).ok).toBe(true);
    const without = hostBelow(root, "", "judge");
    expect(createTrust(without, systemClock).authorize(der, A).ok).toBe(false);
    const listed = { ...without, authorities: root.certificate + between.certificate };
    expect(createTrust(listed, systemClock).authorize(der, A).ok).toBe(true);
  });

  test("may have name constraints, which the TLS library verifies", () => {
    const constraints = [
      basicConstraints({ pathLength: 0 }),
      keyUsage("certSign"),
      // nameConstraints, critical: DNS names below example.org.
      extension(
        OID.nameConstraints,
        true,
        Uint8Array.fromHex("3011a00f300d820b6578616d706c652e6f7267"),
      ),
    ];
    const subject = commonName("bound");
    const forgery = { subject, signer: root, names: [], extendedKeyUsage: null, constraints };
    const bound = { name: subject, ...forge(cluster, "bound", forgery) };
    const der = derOf(hostBelow(bound, "", A).certificates);
    const ours = hostBelow(bound, bound.certificate, "judge");
    expect(createTrust(ours, systemClock).authorize(der, A).ok).toBe(true);
  });

  test("has no more authorities below it than all above allow", () => {
    const third = authority(cluster, "third", null, between);
    const chain = third.certificate + between.certificate;
    const der = derOf(hostBelow(third, chain, A).certificates);
    const ours = hostBelow(third, chain, "judge");
    expect(createTrust(ours, systemClock).authorize(der, A).ok).toBe(false);
  });

  test("must be an authority", () => {
    const subject = commonName("h");
    const host = { name: subject, ...forge(cluster, "h", { subject, signer: root }) };
    const ours = hostBelow(host, host.certificate, "judge");
    const der = derOf(hostBelow(host, "", A).certificates);
    expect(createTrust(ours, systemClock).authorize(der, A).ok).toBe(false);
    const listed = { ...ours, authorities: root.certificate + host.certificate };
    expect(createTrust(listed, systemClock).authorize(der, A).ok).toBe(false);
  });
});

test("a change of credentials is reported and used", () => {
  const other = makeCluster(null);
  const changing = cluster.trust("judge");
  let told = 0;
  const der = derOf(cluster.host(A).certificates);
  {
    using _listener = changing.onChange(() => told++);
    changing.change(other.host("judge"));
    expect([told, changing.authorize(der, A).ok]).toEqual([1, false]);
  }
  changing.change(cluster.host("judge"));
  expect([told, changing.authorize(der, A).ok]).toEqual([1, true]);
  expect(goodNames("test", A)[0]!.value).toBe("spiffe://test/hearth/node-a");
  expect(authorityOf(cluster).key).toBe(cluster.authority.key);
});
