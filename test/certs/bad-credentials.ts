import {
  basicConstraints,
  type Credentials,
  certificatePem,
  commonName,
  decodePem,
  extension,
  generateKey,
  keyUsage,
  OID,
  subjectAltName,
  type WrittenName,
} from "../../src/peers/index.ts";
import { makeCluster, type TestCluster, validFor } from "../support/index.ts";
import { authorityOf, credentialsWith, type Forgery, forge, forged, goodNames } from "./forge.ts";

const HOUR_MS = 3_600_000;

/** Credentials that must never be accepted. */
export interface BadCredential {
  readonly name: string;
  /** `host`: invalid only for a server that is dialled by name. */
  readonly shownBy: "either" | "host";
  make(cluster: TestCluster, worker: string): Credentials;
  /** The authorizer's reason for the certificate alone; null: it accepts it. */
  readonly verdict: RegExp | null;
}

function simple(
  name: string,
  verdict: RegExp,
  forgery: (cluster: TestCluster, worker: string) => Forgery,
): BadCredential {
  return {
    name,
    shownBy: "either",
    verdict,
    make: (cluster, worker) => forged(cluster, worker, forgery(cluster, worker)),
  };
}

function named(
  name: string,
  verdict: RegExp,
  names: (cluster: string, worker: string) => readonly WrittenName[],
): BadCredential {
  return simple(name, verdict, (cluster, worker) => ({ names: names(cluster.name, worker) }));
}

const NOT_A_NAME = /is not spiffe:\/\/<cluster>/;

/** A valid DNS name, and a URI that is almost valid. */
function uri(name: string, value: (cluster: string, worker: string) => string): BadCredential {
  return named(name, NOT_A_NAME, (cluster, worker) => [
    { kind: "uri", value: value(cluster, worker) },
    { kind: "dns", value: worker },
  ]);
}

const DATES: readonly BadCredential[] = [
  simple("expired", /it expired at 20/, () => {
    const { notBeforeMs } = validFor(0);
    return { validity: { notBeforeMs: notBeforeMs - 24 * HOUR_MS, notAfterMs: notBeforeMs } };
  }),
  simple("not yet valid", /it is not valid before 20/, () => {
    const { notAfterMs } = validFor(1);
    return { validity: { notBeforeMs: notAfterMs, notAfterMs: notAfterMs + HOUR_MS } };
  }),
];

const UNSIGNED = /no authority of this cluster signed it/;

const SIGNERS: readonly BadCredential[] = [
  simple("foreign authority", UNSIGNED, () => ({
    signer: authorityOf(makeCluster(null, "foreign")),
  })),
  simple("foreign authority of the same name", UNSIGNED, ({ name }) => ({
    signer: authorityOf(makeCluster(null, name)),
  })),
  simple("self-signed", UNSIGNED, () => ({ signer: "self" })),
  {
    name: "signature with a flipped bit",
    shownBy: "either",
    verdict: UNSIGNED,
    make(cluster, worker) {
      const { certificate, key } = forge(cluster, worker, {});
      const der = decodePem("CERTIFICATE", certificate)[0]!;
      der[der.length - 1]! ^= 0x01;
      return credentialsWith(cluster, worker, { certificate: certificatePem(der), key });
    },
  },
  {
    name: "intermediate not in the chain",
    shownBy: "either",
    verdict: UNSIGNED,
    make: (cluster, worker) => belowIntermediate(cluster, worker, AUTHORITY, false),
  },
  {
    name: "intermediate below an authority that allows none",
    shownBy: "either",
    verdict: UNSIGNED,
    make: (cluster, worker) => belowIntermediate(cluster, worker, AUTHORITY, true),
  },
  {
    name: "signed by another host",
    shownBy: "either",
    verdict: UNSIGNED,
    make: (cluster, worker) => belowIntermediate(cluster, worker, {}, true),
  },
];

const AUTHORITY: Forgery = {
  constraints: [basicConstraints({ pathLength: null }), keyUsage("certSign")],
  extendedKeyUsage: null,
  names: [],
};

function belowIntermediate(
  cluster: TestCluster,
  worker: string,
  forgery: Forgery,
  isShown: boolean,
): Credentials {
  const subject = commonName("between");
  const between = forge(cluster, "between", { ...forgery, subject });
  const pair = forge(cluster, worker, { signer: { name: subject, key: between.key } });
  return credentialsWith(cluster, worker, pair, isShown ? between.certificate : "");
}

/** A library that confuses the second certificate of a chain with the first would accept it. */
function withAnothersBehind(name: string, verdict: RegExp, forgery: Forgery): BadCredential {
  return {
    name,
    shownBy: "either",
    verdict,
    make(cluster, worker) {
      const pair = forge(cluster, worker, forgery);
      return credentialsWith(cluster, worker, pair, forge(cluster, worker, {}).certificate);
    },
  };
}

const CHAINS: readonly BadCredential[] = [
  withAnothersBehind("another cluster, with a good host's behind it", /to the cluster other/, {
    names: goodNames("other", "somebody"),
  }),
  withAnothersBehind("for no use, with a good host's behind it", /not made for servers/, {
    extendedKeyUsage: null,
  }),
  withAnothersBehind("self-signed, with a good host's behind it", UNSIGNED, { signer: "self" }),
];

const NAMES: readonly BadCredential[] = [
  named("another cluster", /to the cluster other, not to/, (_cluster, worker) =>
    goodNames("other", worker),
  ),
  {
    ...named("another worker", /names the worker somebody, but/, (cluster, worker) => [
      ...goodNames(cluster, "somebody"),
      { kind: "dns", value: worker },
    ]),
    shownBy: "host",
  },
  named("two URIs", /it has 2 URI names/, (cluster, worker) => [
    ...goodNames(cluster, worker),
    ...goodNames(cluster, "somebody"),
  ]),
  named("the same URI twice", /it has 2 URI names/, (cluster, worker) => [
    ...goodNames(cluster, worker),
    ...goodNames(cluster, worker),
  ]),
  simple("URI in the CN only", /it has no URI name/, ({ name }, worker) => ({
    subject: commonName(`spiffe://${name}/hearth/${worker}`),
    names: [{ kind: "dns", value: worker }],
  })),
  named("DNS name only", /it has no URI name/, (_cluster, worker) => [
    { kind: "dns", value: worker },
  ]),
  simple("no names", /it has no URI name/, () => ({ names: [] })),
  named("URI as a DNS name", /it has no URI name/, (cluster, worker) => [
    { kind: "dns", value: `spiffe://${cluster}/hearth/${worker}` },
    { kind: "dns", value: worker },
  ]),
  named("URI as an e-mail address", /it has no URI name/, (cluster, worker) => [
    { kind: "email", value: `spiffe://${cluster}/hearth/${worker}` },
    { kind: "dns", value: worker },
  ]),
  simple("two lists of names", /is there twice/, ({ name }) => ({
    extensions: [subjectAltName(...goodNames(name, "somebody"))],
  })),
];

const URIS: readonly BadCredential[] = [
  uri("scheme in capitals", (cluster, worker) => `SPIFFE://${cluster}/hearth/${worker}`),
  uri("another scheme", (cluster, worker) => `https://${cluster}/hearth/${worker}`),
  uri(
    "cluster in capitals",
    (cluster, worker) => `spiffe://${cluster.toUpperCase()}/hearth/${worker}`,
  ),
  uri("path in capitals", (cluster, worker) => `spiffe://${cluster}/HEARTH/${worker}`),
  uri("percent-encoded letter", (cluster, worker) => {
    const first = worker.charCodeAt(0).toString(16);
    return `spiffe://${cluster}/hearth/%${first}${worker.slice(1)}`;
  }),
  uri("percent-encoded slash", (cluster, worker) => `spiffe://${cluster}/hearth%2f${worker}`),
  uri("user", (cluster, worker) => `spiffe://root@${cluster}/hearth/${worker}`),
  uri("port", (cluster, worker) => `spiffe://${cluster}:443/hearth/${worker}`),
  uri("query", (cluster, worker) => `spiffe://${cluster}/hearth/${worker}?worker=other`),
  uri("fragment", (cluster, worker) => `spiffe://${cluster}/hearth/${worker}#other`),
  uri("slash at the end", (cluster, worker) => `spiffe://${cluster}/hearth/${worker}/`),
  uri("empty segment", (cluster, worker) => `spiffe://${cluster}//hearth/${worker}`),
  uri("dots in the path", (cluster, worker) => `spiffe://${cluster}/x/../hearth/${worker}`),
  uri("no worker", (cluster) => `spiffe://${cluster}/hearth/`),
  uri("NUL byte", (cluster, worker) => `spiffe://${cluster}/hearth/${worker}\0.somebody`),
  uri("line end", (cluster, worker) => `spiffe://${cluster}/hearth/${worker}\n`),
  uri(
    "comma and a second name",
    (cluster, worker) =>
      `spiffe://${cluster}/hearth/${worker}, URI:spiffe://${cluster}/hearth/somebody`,
  ),
  uri("letter beyond ASCII", (cluster, worker) => `spiffe://${cluster}/hearth/${worker}\xe9`),
];

const USES: readonly BadCredential[] = [
  simple("authority as a host", /it is an authority's certificate/, () => ({
    constraints: [basicConstraints({ pathLength: 0 }), keyUsage("certSign", "digitalSignature")],
  })),
  {
    name: "the cluster's authority itself",
    shownBy: "either",
    verdict: /it is an authority's certificate/,
    make: (cluster, worker) => credentialsWith(cluster, worker, cluster.authority),
  },
  simple("no extended key usage", /it is not made for servers/, () => ({
    extendedKeyUsage: null,
  })),
  simple("for servers only", /it is not made for clients/, () => ({
    extendedKeyUsage: [OID.serverAuth],
  })),
  simple("for clients only", /it is not made for servers/, () => ({
    extendedKeyUsage: [OID.clientAuth],
  })),
  simple("key not for signatures", /its key may not be used for signatures/, () => ({
    constraints: [basicConstraints(null), keyUsage("crlSign")],
  })),
  simple("unknown critical extension", /unknown critical extension 2.5.29.36/, () => ({
    extensions: [POLICY_CONSTRAINTS],
  })),
  {
    name: "key of another certificate",
    shownBy: "either",
    verdict: null,
    make: (cluster, worker) => ({ ...forged(cluster, worker, {}), key: generateKey() }),
  },
];

/** RFC 5280, 4.2.1.11, critical as it must be: requireExplicitPolicy 0. */
const POLICY_CONSTRAINTS = extension(OID.policyConstraints, true, Uint8Array.fromHex("3003800100"));

export const BAD_CREDENTIALS: readonly BadCredential[] = [
  ...DATES,
  ...SIGNERS,
  ...CHAINS,
  ...NAMES,
  ...URIS,
  ...USES,
];
