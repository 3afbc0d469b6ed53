import { X509Certificate } from "node:crypto";
import { type Random, randomBelow, systemClock, type WorkerId } from "../../../src/core/index.ts";
import {
  createTrust,
  decodePem,
  extension,
  generateKey,
  OID,
  parsePeerUri,
  peerUri,
  type ReadCertificate,
  readCertificate,
  subjectAltName,
  type WrittenName,
} from "../../../src/peers/index.ts";
import { BAD_CREDENTIALS } from "../../certs/bad-credentials.ts";
import { type Forgery, forge } from "../../certs/forge.ts";
import { makeCluster } from "../../support/index.ts";
import { mutate } from "../mutate.ts";
import { must, shapeOf, type Target } from "../target.ts";
import { oneOf } from "./text-input.ts";

const WORKER = "node-a" as WorkerId;
const KINDS = ["uri", "uri", "uri", "dns", "email"] as const;
const PIECES = [
  "spiffe://",
  "test",
  "/hearth/",
  WORKER,
  "/",
  "%2f",
  "\0",
  "\n",
  "@",
  ":1",
  "?",
  "#",
  "TEST",
  ", URI:",
  "é",
  "..",
];

/** A name that is nearly right. */
function name(random: Random): WrittenName {
  const pieces = ["spiffe://", "test", "/hearth/", WORKER];
  for (let i = randomBelow(random, 3); i > 0; i--) {
    pieces.splice(randomBelow(random, 5), randomBelow(random, 2), oneOf(PIECES, random));
  }
  return { kind: oneOf(KINDS, random), value: pieces.join("") };
}

function derOf(pem: string): Uint8Array {
  return decodePem("CERTIFICATE", pem)[0]!;
}

function checkRead(input: Uint8Array, certificate: ReadCertificate, saw: (text: string) => void) {
  const { names, authority, notBeforeMs, notAfterMs } = certificate;
  must(Number.isSafeInteger(notBeforeMs) && Number.isSafeInteger(notAfterMs), "dates are dates");
  must(names.length <= 64, "names are bounded");
  for (const { kind, value } of names) {
    must(kind !== "other" || value === "", "a name of another kind has no value");
    const parsed = parsePeerUri(value);
    saw(`${kind} ${parsed === null ? "strange" : "good"}`);
    if (parsed !== null) must(peerUri(parsed) === value, "a host's name has one form");
  }
  let other: X509Certificate;
  try {
    other = new X509Certificate(input);
  } catch {
    return saw("the TLS library refuses it");
  }
  saw("the TLS library reads it, too");
  // It takes one with another extension that is damaged for no authority.
  must(!other.ca || authority !== null, "an authority is seen as one");
  must(other.validToDate.getTime() === notAfterMs, "both see the same end");
  must(other.validFromDate.getTime() === notBeforeMs, "both see the same begin");
}

/** Certificates of strangers, who write what they like into them. */
export function names(): Target {
  const cluster = makeCluster(null);
  const trust = createTrust(cluster.host("judge"), systemClock);
  const key = generateKey();
  const certificateOf = (forgery: Forgery) =>
    derOf(forge(cluster, WORKER, { ...forgery, key }).certificate);
  const good = certificateOf({});
  const bad = BAD_CREDENTIALS.map(({ make }) => derOf(make(cluster, WORKER).certificates));
  return {
    name: "names",
    corpus: [good, derOf(cluster.authority.certificate), ...bad],
    inputBytesMax: 20 * 1024,
    generate(random) {
      const listed = Array.from({ length: 1 + randomBelow(random, 3) }, () => name(random));
      if (randomBelow(random, 2) === 0) return certificateOf({ names: listed });
      const whole = new Uint8Array(subjectAltName(...listed).extnValue.buffer);
      const damaged = mutate([whole], random, 4096);
      const extensions = [extension(OID.subjectAltName, false, damaged)];
      return certificateOf({ names: [], extensions });
    },
    run(input, saw) {
      const read = readCertificate(input);
      if (read.ok) checkRead(input, read.certificate, saw);
      else saw(shapeOf(read.why));
      const judgement = trust.authorize(input, null);
      if (!judgement.ok) {
        must(/^[ -~]{5,400}$/.test(judgement.why), "a refusal is one line of plain text");
        return saw(shapeOf(judgement.why));
      }
      saw("good");
      must(read.ok, "what is good can be read");
      const uris = read.certificate.names.filter(({ kind }) => kind === "uri");
      must(uris.length === 1, "who is good has one name");
      const { worker, cluster: of } = judgement.identity;
      must(uris[0]!.value === `spiffe://test/hearth/${worker}`, "and it is that one");
      must(of === "test", "in this cluster");
    },
  };
}
