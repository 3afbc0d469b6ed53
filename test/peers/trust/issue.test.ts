import { describe, expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { decodePem, readCertificate } from "../../../src/peers/trust/index.ts";
import { makeCluster, noteSkip, tempDir } from "../../support/index.ts";

const A = "gpu-node_A1" as WorkerId;

function derOf(pem: string): Uint8Array {
  return decodePem("CERTIFICATE", pem)[0]!;
}

function factsOf(pem: string) {
  const read = readCertificate(derOf(pem));
  if (!read.ok) throw new Error(read.why);
  return read.certificate;
}

describe("an issued certificate", () => {
  const cluster = makeCluster(tempDir());

  test("has the expected contents", () => {
    const host = factsOf(cluster.host(A).certificates);
    const authority = factsOf(cluster.authority.certificate);
    expect(host.names).toEqual([
      { kind: "uri", value: `spiffe://test/hearth/${A}` },
      { kind: "dns", value: A },
    ]);
    expect(host.authority).toBeNull();
    expect([...host.keyUsage!]).toEqual(["digitalSignature"]);
    expect(host.issuer).toEqual(authority.subject);
    expect(authority.authority).toEqual({ pathLength: 0 });
    expect([...authority.keyUsage!]).toEqual(["certSign", "crlSign"]);
    expect(authority.unknownCritical).toEqual([]);
  });

  test("is accepted by its own cluster only", () => {
    const credentials = cluster.host(A);
    const der = derOf(credentials.certificates);
    const authorized = cluster.trust("b").authorize(der, A);
    expect(authorized).toMatchObject({ ok: true, identity: { worker: A, cluster: "test" } });
    expect(makeCluster(null).trust("b").authorize(der, A)).toEqual({
      ok: false,
      why: "no authority of this cluster signed it",
    });
  });

  test("is valid for openssl", () => {
    if (Bun.which("openssl") === null) return noteSkip("openssl", "openssl is not installed");
    const { certFile, caFile, keyFile } = cluster.files(A);
    const run = (...words: string[]) => {
      const { exitCode, stdout, stderr } = Bun.spawnSync(["openssl", ...words]);
      return `${exitCode} ${stdout}${stderr}`;
    };
    for (const purpose of ["sslserver", "sslclient"]) {
      const strict = ["-x509_strict", "-purpose", purpose, "-verify_hostname", A];
      expect(run("verify", "-CAfile", caFile, ...strict, certFile)).toBe(`0 ${certFile}: OK\n`);
    }
    const foreign = makeCluster(tempDir()).files(A).caFile;
    expect(run("verify", "-CAfile", foreign, certFile)).not.toStartWith("0 ");
    const another = ["-x509_strict", "-verify_hostname", "another"];
    expect(run("verify", "-CAfile", caFile, ...another, certFile)).toContain("hostname mismatch");
    expect(run("pkey", "-in", keyFile, "-noout", "-check")).toStartWith("0 ");
  });
});
