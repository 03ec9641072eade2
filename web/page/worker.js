// A worker: trains policies for games, one for each of its seeds, or a language model. The runs take one iteration each
// in turn. Several workers may share a run: rank 0 leads and reports, the others follow its commands.

import { adapterName } from "./adapter.js";
import { sentence } from "./dom.js";
import { RATE } from "./player.js";
import { plain, restored } from "./saved.js";
import { trainer } from "./trainer.js";

/** Milliseconds between two policies of a run that are sent to the page. */
const POLICY_EVERY = 300;
/** Milliseconds between two messages with records: each takes time of the page, and the page takes a processor. */
const RECORDS_EVERY = 100;
/** Milliseconds between two checkpoints of a run. */
const SAVE_EVERY = 4000;
/** Milliseconds between two answers to the visitor's prompt. */
const ANSWER_EVERY = 600;
/** Milliseconds between two pauses in which messages arrive. */
const YIELD_EVERY = 50;
/** Milliseconds between two pictures of the wall, on a GPU and on a software adapter. */
const FRAME = 15;
const SOFTWARE_FRAME = 90;

/** The commands of the leader to all workers that share a run. */
const [STOP, ITERATE, SAVE] = [0, 1, 2];

const runs = [];
let plays = false; // whether policies for games are trained
let memory; // of the module, which grows
let size; // of the memory, as the page knows it
let paused = false;
let looping = false;
let question;
let answered = -Infinity;
let wall;

/** Runs tasks one after another: the module does one thing at a time. */
let last = Promise.resolve();
function inTurn(task) {
  const done = last.then(task);
  last = done.catch(() => {});
  return done;
}

/** Lets messages arrive between two iterations; a timer would cost milliseconds each time. */
const yieldNow = () => new Promise((done) => {
  if (performance.now() - yielded < YIELD_EVERY) return done();
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); yielded = performance.now(); done(); };
  port2.postMessage(0);
});
let yielded = 0;

let loading;

/** The module, started; it is fetched once, before a run is asked for if the page says so. */
const load = (name) => (loading ??= fetched(name));

async function fetched(name) {
  const module = await trainer(name);
  const { memory } = await module.default();
  return { ...module, memory };
}

/** Creates or resumes the wanted runs, or this worker's part of them, reports their devices and first records, and
    trains them. */
async function start({ module, wanted, gpu, place, paused: waits, question: asked }) {
  plays = module === "train";
  paused = waits;
  question = asked;
  try {
    const { Training, Saved, Place, ...loaded } = await load(module);
    memory = loaded.memory;
    const own = () => place && new Place(place.memory, place.rank, place.size);
    for (const { seed, text, saved, file } of wanted) {
      const training = saved ? await Training.resume(restored(Saved, saved), file, gpu, own()) : await Training.create(text, file, gpu, own());
      if (!training) return close(); // the run has too few shards for this worker
      const run = { seed, training, iteration: saved?.iteration ?? 0, news: [], told: -Infinity, sent: -Infinity, saved: -Infinity };
      runs.push(run);
      if (!leads()) continue;
      const about = JSON.parse(training.about());
      run.software = about.software;
      if (about.api === "WebGPU") about.device = await adapterName();
      postMessage({ is: "about", seed, about });
      if (!plays) continue;
      await sendPolicy(run);
      if (!saved) postMessage({ is: "records", seed, news: [JSON.parse(await training.first())] });
    }
    if (leads()) tellMemory();
  } catch (error) {
    return postMessage({ is: "refused", why: sentence(error) });
  }
  await proceed();
}

const leads = () => runs.every(({ training }) => training.rank() === 0);
const proceed = () => (leads() ? train() : follow());

/** Follows the commands of the leader, until it stops or fails. */
async function follow() {
  const [{ training }] = runs;
  try {
    for (;;) {
      const command = training.next(STOP);
      if (command === STOP) return;
      if (command === ITERATE) await training.iterate();
      else (await training.save()).free();
    }
  } catch {
    // The leader meets the same error, and reports it.
  }
}

/** Sends the size of the module's memory if it has grown. */
function tellMemory() {
  if (memory.buffer.byteLength === size) return;
  size = memory.buffer.byteLength;
  postMessage({ is: "memory", bytes: size });
}

/** Sends the records since the last time, and the completions of a language model. */
function tell(run) {
  tellMemory();
  if (run.news.length === 0) return;
  postMessage({ is: "records", seed: run.seed, news: run.news });
  run.news = [];
  run.told = performance.now();
}

/** Sends a checkpoint as plain data, for the browser's storage. */
async function save(run) {
  run.training.next(SAVE);
  const saved = plain(await run.training.save());
  run.saved = performance.now();
  run.stored = run.iteration;
  tell(run);
  postMessage({ is: "saved", seed: run.seed, saved });
}

async function sendPolicy(run) {
  const file = await run.training.file();
  run.sent = performance.now();
  run.known = run.iteration;
  tell(run);
  postMessage({ is: "policy", seed: run.seed, iteration: run.iteration, file }, [file.buffer]);
}

async function sendFile() {
  try {
    const file = await runs[0].training.file();
    postMessage({ is: "file", file }, [file.buffer]);
  } catch (error) {
    postMessage({ is: "file", why: sentence(error) });
  }
}

/** Answers the visitor's prompt by the current model. */
function answer() {
  if (!question || runs.length === 0) return;
  const { prompt, drawn } = question;
  answered = performance.now();
  try {
    postMessage({ is: "answers", prompt, answers: JSON.parse(runs[0].training.answer(prompt, drawn)) });
  } catch (error) {
    postMessage({ is: "answers", prompt, why: sentence(error) });
    question = undefined;
  }
}

/** Does some work of a run, whose error ends the run. */
async function attempt(run, work) {
  try {
    await work(run);
  } catch (error) {
    run.failed = true;
    tell(run);
    postMessage({ is: "failed", seed: run.seed, iteration: run.iteration, why: sentence(error) });
  }
}

async function iterate(run) {
  run.training.next(ITERATE);
  const news = JSON.parse(await run.training.iterate());
  run.iteration = news.record.iteration;
  run.news.push(news);
  const now = performance.now();
  if (now - run.told > RECORDS_EVERY) tell(run);
  if (plays && now - run.sent > POLICY_EVERY) await sendPolicy(run);
  if (now - answered > ANSWER_EVERY) answer();
  if (!run.training.is_done() && now - run.saved > SAVE_EVERY) await save(run);
}

/** Sends all that is new of a run before a pause or at its end. */
async function settle(run) {
  tell(run);
  if (plays && run.known < run.iteration) await sendPolicy(run);
  if (!run.training.is_done() && run.stored !== run.iteration && run.iteration > 0) await save(run);
  run.training.next(STOP);
}

const intact = () => runs.filter((run) => !run.failed);
const unfinished = () => intact().filter((run) => !run.training.is_done());

async function train() {
  if (looping) return;
  looping = true;
  while (!paused && unfinished().length > 0) {
    for (const run of unfinished()) {
      await inTurn(() => attempt(run, iterate));
      await yieldNow();
      if (paused) break;
    }
  }
  for (const run of intact()) await inTurn(() => attempt(run, settle));
  looping = false;
  answer();
  postMessage({ is: unfinished().length > 0 ? "paused" : "done" });
}

/** Draws a wall of games from the device's memory, until another wall replaces it or it is closed. */
async function showWall({ canvas, games, calm }) {
  const [{ training, software }] = runs;
  const own = (wall = { stepped: -Infinity });
  try {
    await inTurn(() => training.show(canvas, games));
    while (wall === own) {
      await inTurn(() => drawWall(training, own, calm));
      await new Promise((done) => setTimeout(done, software ? SOFTWARE_FRAME : FRAME));
      await new Promise((done) => requestAnimationFrame(done)); // none while the tab is hidden
    }
  } catch (error) {
    if (wall !== own) return;
    wall = undefined;
    postMessage({ is: "no wall", why: sentence(error) });
  }
}

/** Draws the wall once: plays a step when one is due, and shows its motion. */
function drawWall(training, shown, calm) {
  const now = performance.now();
  if ((now - shown.stepped) * RATE >= 1000) {
    training.step();
    shown.stepped = now;
  }
  training.draw(calm ? 1 : ((now - shown.stepped) * RATE) / 1000);
}

onmessage = ({ data }) => {
  if (data.do === "load") {
    // An error is reported by the run that needs the module.
    load(data.module).then(() => postMessage({ is: "loaded" }), () => { loading = undefined; });
  }
  if (data.do === "start") start(data);
  if (data.do === "pause") paused = true;
  if (data.do === "continue") {
    paused = false;
    proceed();
  }
  if (data.do === "ask") {
    question = data.question;
    inTurn(answer);
  }
  if (data.do === "file" && runs.length > 0) inTurn(sendFile);
  if (data.do === "wall") showWall(data);
  if (data.do === "no wall") wall = undefined;
};
