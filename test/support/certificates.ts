import { writeFileSync } from "node:fs";
import { join } from "node:path";

export interface Certificates {
  readonly caFile: string;
  /** An authority that signed none of the others. */
  readonly otherCaFile: string;
  /** For 127.0.0.1 and localhost. */
  readonly certFile: string;
  readonly keyFile: string;
  readonly clientCertFile: string;
  readonly clientKeyFile: string;
  /** Signed by the other authority. */
  readonly strangerCertFile: string;
  readonly strangerKeyFile: string;
  /** For another name. */
  readonly misnamedCertFile: string;
  readonly misnamedKeyFile: string;
}

function openssl(folder: string, ...args: string[]): void {
  const { exitCode, stderr } = Bun.spawnSync(["openssl", ...args], { cwd: folder });
  if (exitCode !== 0) throw new Error(`openssl ${args.join(" ")}: ${stderr}`);
}

function authority(folder: string, name: string): void {
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  const out = ["-keyout", `${name}.key`, "-out", `${name}.pem`, "-days", "30"];
  openssl(folder, "req", "-x509", ...key, ...out, "-subj", `/CN=${name}`);
}

function certificate(folder: string, name: string, ca: string, names: string): void {
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  openssl(folder, "req", ...key, "-keyout", `${name}.key`, "-out", "csr", "-subj", `/CN=${name}`);
  const usage = "extendedKeyUsage=serverAuth,clientAuth";
  writeFileSync(join(folder, "ext"), `subjectAltName=${names}\n${usage}\n`);
  const signer = ["-CA", `${ca}.pem`, "-CAkey", `${ca}.key`, "-CAcreateserial"];
  const out = ["-out", `${name}.pem`, "-days", "30", "-extfile", "ext"];
  openssl(folder, "x509", "-req", "-in", "csr", ...signer, ...out);
}

/** Two authorities and their certificates, made by openssl in `folder`. */
export function makeCertificates(folder: string): Certificates {
  authority(folder, "ca");
  authority(folder, "other");
  certificate(folder, "server", "ca", "IP:127.0.0.1,DNS:localhost");
  certificate(folder, "client", "ca", "DNS:client");
  certificate(folder, "stranger", "other", "DNS:stranger");
  certificate(folder, "misnamed", "ca", "DNS:elsewhere.example");
  const file = (name: string) => join(folder, name);
  return {
    caFile: file("ca.pem"),
    otherCaFile: file("other.pem"),
    certFile: file("server.pem"),
    keyFile: file("server.key"),
    clientCertFile: file("client.pem"),
    clientKeyFile: file("client.key"),
    strangerCertFile: file("stranger.pem"),
    strangerKeyFile: file("stranger.key"),
    misnamedCertFile: file("misnamed.pem"),
    misnamedKeyFile: file("misnamed.key"),
  };
}
