// Greedy tokens of llama.cpp and of Grove for one GGUF file, compared:
//
//     npm i node-llama-cpp --ignore-scripts     (in a folder FOLDER)
//     node llama_cpp.mjs FOLDER GROVE MODEL.gguf PROMPT [COUNT] [RUN ADAPTERS.gguf]
//
// With RUN and ADAPTERS, Grove's tokens are those of the run, and llama.cpp adds the adapters to MODEL.
import { execFileSync } from "node:child_process";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, grove, model, prompt, count = "64", run = model, adapters] = process.argv.slice(2);
const entry = join(resolve(folder), "node_modules/node-llama-cpp/dist/index.js");
const { getLlama } = await import(pathToFileURL(entry).href);

const options = ["--raw", "--temperature", "0", "--max-new-tokens", count, "--json"];
const printed = execFileSync(grove, ["generate", run, prompt, ...options], { stdio: ["ignore", "pipe", "ignore"] });
const [{ tokens: ours }] = JSON.parse(printed).completions;

const llama = await getLlama({ gpu: false, build: "never", maxThreads: 2, logLevel: "error" });
const loaded = await llama.loadModel({ modelPath: resolve(model) });
const context = await loaded.createContext({
  contextSize: Math.min(loaded.trainContextSize, 1024),
  flashAttention: false,
  ...(adapters && { lora: { adapters: [{ filePath: resolve(adapters) }] } }),
});
const tokens = [...loaded.tokenize(prompt, false, "trimLeadingSpace")];
const bos = loaded.tokens.shouldPrependBosToken ? [loaded.tokens.bos] : [];
const theirs = [];
const stream = context.getSequence().evaluate([...bos, ...tokens], { temperature: 0, yieldEogToken: true });
for await (const token of stream) {
  theirs.push(token);
  if (theirs.length === ours.length) break;
}
const same = theirs.findIndex((token, at) => token !== ours[at]);
console.log(`${ours.length} tokens of Grove, ${theirs.length} of llama.cpp: ${same < 0 ? "the same" : `other from ${same} on`}`);
if (same >= 0 || theirs.length !== ours.length) {
  console.log(JSON.stringify({ ours, theirs }));
  process.exit(1);
}
process.exit(0);
