/** Mock engines in a process of their own: prints their addresses, ends with standard input. */
import { MockEngine, POLITE } from "./mock-engine.ts";

const MODEL = "acme/tiny-chat";
const engines = [new MockEngine("vllm", MODEL), new MockEngine("sglang", MODEL)];
const control = Bun.serve({
  port: 0,
  hostname: "127.0.0.1",
  async fetch(request) {
    if (request.method === "POST") {
      const manners = { ...POLITE, ...((await request.json()) as object) };
      for (const engine of engines) engine.manners = manners;
    }
    const seen = engines.map((engine) => engine.seen.length);
    for (const engine of engines) if (engine.seen.length > 4_096) engine.seen.length = 0;
    const [live, aborted] = [engines.map(({ live }) => live), engines.map((one) => one.aborted)];
    return Response.json({ live, aborted, seen });
  },
});
const urls = engines.map(({ url }) => url);
console.log(JSON.stringify({ urls, control: `http://127.0.0.1:${control.port}` }));
for await (const _ of Bun.stdin.stream());
process.exit(0);
