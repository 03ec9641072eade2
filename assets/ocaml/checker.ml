(* A server that types, compiles and runs pieces of OCaml, each in a process of its own.

   It reads requests from its standard input and answers each with a line:

     request   ID CPU WALL GATE LENGTH... <newline> and so many bytes each: prelude, signature, code, calls
     answer    ID <space> types <space> compile <space> a result for each call <space> and a full stop
     or        ID unusable NUMBER MESSAGE, if the call of that number (0: what is around the calls) cannot be compiled

   [types] is a number of errors, or [syntax]; [compile] is [ok], [no], or an exclamation mark and the name of what may not
   be used; a result is the digest of a call's value, or [-]; the full stop says that the process ended by itself. What is
   missing from the end of an answer did not come to pass: the process ended, or was ended, before. Only who asks knows which digest is the right
   one: nothing that the code prints, calls or breaks earns it anything.

   Without code, the calls are computed by themselves; with a signature but no code, they are compiled only.

   A call that is a value is digested where it is computed. Where a call is the outcome of a test, and the function takes
   and returns data alone that cannot change, the calls are computed by another process than the code's, which asks that
   for what the function returns. *)

(* {1 Types} *)

let parse text = Parse.implementation (Lexing.from_string text)

let type_structure env structure =
  Typecore.reset_delayed_checks ();
  Env.reset_required_globals ();
  let typed, _, _, env' = Typemod.type_toplevel_phrase env structure in
  Typecore.force_delayed_checks ();
  (typed, env')

(* Where a type error is, if the exception is one. *)
let error_location exn =
  match Location.error_of_exn exn with
  | Some (`Ok report) -> Some report.Location.main.loc
  | _ -> None

let inside (inner : Location.t) (outer : Location.t) =
  outer.loc_start.pos_cnum <= inner.loc_start.pos_cnum && inner.loc_end.pos_cnum <= outer.loc_end.pos_cnum

(* An expression of any type. *)
let hole =
  Ast_helper.Exp.assert_ (Ast_helper.Exp.construct (Location.mknoloc (Longident.Lident "false")) None)

(* The structure with a hole in place of the smallest expression that holds a place, or without the item that does. *)
let mended structure place =
  let smallest = ref None in
  let expr (iterator : Ast_iterator.iterator) (e : Parsetree.expression) =
    if inside place e.pexp_loc then smallest := Some e;
    Ast_iterator.default_iterator.expr iterator e
  in
  let iterator = { Ast_iterator.default_iterator with expr } in
  iterator.structure iterator structure;
  match !smallest with
  | Some target when target.pexp_desc <> hole.pexp_desc ->
      let expr mapper e = if e == target then { hole with pexp_loc = e.Parsetree.pexp_loc } else Ast_mapper.default_mapper.expr mapper e in
      let mapper = { Ast_mapper.default_mapper with expr } in
      mapper.structure mapper structure
  | _ -> List.filter (fun (item : Parsetree.structure_item) -> not (inside place item.pstr_loc)) structure

(* The errors of a structure, at most [limit]: each is counted, mended, and the rest looked at again. *)
let rec count_errors env structure limit =
  if limit = 0 then 0
  else
    match type_structure env structure with
    | _ -> 0
    | exception exn -> (
        match error_location exn with
        | None -> 1
        | Some place ->
            let next = mended structure place in
            if next = structure then 1 else 1 + count_errors env next (limit - 1))

open Grove_gate

(* {1 Running} *)

let execute ?(check = ignore) typed =
  let lambda = Translmod.transl_toplevel_definition typed in
  let lambda = Simplif.simplify_lambda lambda in
  check lambda;
  let init, functions = Bytegen.compile_phrase lambda in
  let code, relocations, events = Emitcode.to_memory init functions in
  Symtable.patch_object code relocations;
  Symtable.check_global_initialized relocations;
  Symtable.update_global_table ();
  let _, run = Meta.reify_bytecode code [| events |] None in
  ignore (run ())

(* The digest of a value that is made of data alone, and not too large. *)
let room = Bytes.create 65536

let digest value =
  let length = Marshal.to_buffer room 0 (Bytes.length room) value [ Marshal.No_sharing ] in
  Digest.to_hex (Digest.subbytes room 0 length)

let prepare () =
  Clflags.debug := false;
  ignore (Warnings.parse_options false "-a");
  Toploop.set_paths ();
  Topeval.init ();
  Toploop.initialize_toplevel_env ();
  (* What the standard library declares is read now, not in each process anew. *)
  let item name = "let _ = let open " ^ name ^ " in ()" in
  ignore (type_structure !Toploop.toplevel_env (parse (String.concat "\n" (List.map item modules))));
  list_primitives !Toploop.toplevel_env

(* Numbers the exceptions that a structure declares, those of its modules among them, by their places in it. The system
   counts them as they are declared, which differs between processes, and a digest of an exception has its number. Those
   below [first] were declared before, and have another name here. *)
let number_exceptions env first (structure : Typedtree.structure) =
  let place = ref (-1_000) in
  let rec number (item : Types.signature_item) value =
    match item with
    | Sig_typext _ when (Obj.obj (Obj.field value 1) : int) >= first ->
        decr place;
        Obj.set_field value 1 (Obj.repr !place)
    | Sig_module (_, _, { md_type; _ }, _, _) -> (
        match Env.scrape_alias env md_type with
        | Mty_signature items ->
            List.iteri (fun i item -> number item (Obj.field value i)) (List.filter Includemod.is_runtime_component items)
        | _ -> ())
    | _ -> ()
  in
  let item item =
    match item with
    | Types.Sig_typext (id, _, _, _) | Sig_module (id, Mp_present, _, _, _) ->
        number item (Obj.repr (Toploop.getvalue (Translmod.toplevel_name id)))
    | _ -> ()
  in
  List.iter item structure.str_type

let run env text =
  let typed, env = type_structure env (parse text) in
  let first = Obj.Extension_constructor.(id (of_val (let exception First in First))) in
  execute typed;
  number_exceptions env first typed;
  env

(* {1 Problems} *)

(* What is the same for all answers to a problem, made ready once: the types around it with its signature [Wanted], and a
   function from a module of that signature, and from what is done with each call, to the calls. *)
(* A process remembers so many: each takes some memory, of which an answer would have the less. *)
let most_problems = 256

type problem = {
  env : Env.t;
  prelude : Parsetree.structure;
  num_calls : int;
  calls : Obj.t -> (Obj.t -> unit) -> unit;
  apart : apart option;
}

(* How a function is called in another process: the shapes of what it takes and returns, and the prelude's exceptions. *)
and apart = { takes : Grove_data.shape list; returns : Grove_data.shape; exceptions : exn array }

(* The exceptions without arguments that a prelude declares.
   @raise Unfit if it declares what two processes could not share *)
let exceptions_of env prelude =
  let name (item : Parsetree.structure_item) =
    match item.pstr_desc with
    | Pstr_type _ | Pstr_attribute _ | Pstr_open _ | Pstr_modtype _ -> None
    | Pstr_value (_, bindings) ->
        let is_pure (binding : Parsetree.value_binding) =
          match binding.pvb_expr.pexp_desc with Pexp_fun _ | Pexp_function _ | Pexp_constant _ -> true | _ -> false
        in
        if List.for_all is_pure bindings then None else raise Grove_data.Unfit
    | Pstr_exception { ptyexn_constructor = { pext_name; pext_kind = Pext_decl (Pcstr_tuple [], None); _ }; _ } ->
        Some pext_name.txt
    | _ -> raise Grove_data.Unfit
  in
  match List.filter_map name (parse prelude) with
  | [] -> [||]
  | names ->
      ignore (run env ("let grove_exceptions : exn array = [| " ^ String.concat "; " names ^ " |]"));
      Obj.obj (Toploop.getvalue "grove_exceptions")

let contains text part =
  let n = String.length part in
  let rec from i = i + n <= String.length text && (String.sub text i n = part || from (i + 1)) in
  from 0

(* Whether a call is a pair of a text and what a test finds, rather than a value to be compared outside. *)
let is_judgement call =
  let rec is_pair (e : Parsetree.expression) =
    match e.pexp_desc with
    | Pexp_letmodule (_, _, inner) | Pexp_open (_, inner) -> is_pair inner
    | Pexp_tuple ({ pexp_desc = Pexp_constant (Pconst_string _); _ } :: _) -> true
    | _ -> false
  in
  is_pair (Parse.expression (Lexing.from_string call))

(* How the function is called in another process, if there are tests to judge, it takes and returns data alone, and nobody
   can tell the difference: a copy of what cannot change differs in its address alone. *)
let apart_of env prelude calls =
  let is_physical text = List.exists (contains text) [ "=="; "!="; "memq"; "assq" ] in
  let rec arrows ty =
    let ty = Ctype.expand_head env ty in
    match ty.Types.desc with
    | Tarrow (_, argument, result, _) ->
        let takes, returns = arrows result in
        (Grove_data.shape env argument :: takes, returns)
    | _ -> ([], Grove_data.shape env ty)
  in
  try
    if List.exists is_physical (prelude :: calls) || not (List.exists is_judgement calls) then raise Grove_data.Unfit;
    match Env.find_modtype_by_name (Longident.Lident "Wanted") env with
    | _, { mtd_type = Some (Mty_signature [ Sig_value (_, { val_type; val_kind = Val_reg; _ }, _) ]); _ } ->
        let takes, returns = arrows val_type in
        Some { takes; returns; exceptions = exceptions_of env prelude }
    | _ -> None
  with _ -> None

let problem prelude signature calls =
  let env = run !Toploop.toplevel_env (prelude ^ "\nmodule type Wanted = sig " ^ signature ^ " end") in
  List.iter (fun call -> ignore (Parse.expression (Lexing.from_string call))) calls;
  let call text = "grove_call (fun () -> Stdlib.Obj.repr (" ^ text ^ "));" in
  let body = String.concat "\n" (List.map call calls) ^ " ()" in
  ignore (run env ("let grove_calls (module Grove : Wanted) grove_call = let open Grove in " ^ body));
  let num_calls = List.length calls and apart = apart_of env prelude calls in
  { env; prelude = parse prelude; num_calls; calls = Obj.obj (Toploop.getvalue "grove_calls"); apart }

(* The code without the items that it begins with and that stand before the function in the prompt: who repeats the
   prompt means its types and exceptions, not others of the same names. *)
let rec unrepeated prelude code =
  let plain item =
    let default = Ast_mapper.default_mapper in
    let expr mapper (e : Parsetree.expression) = { (default.expr mapper e) with pexp_loc_stack = [] } in
    let typ mapper (t : Parsetree.core_type) = { (default.typ mapper t) with ptyp_loc_stack = [] } in
    let pat mapper (p : Parsetree.pattern) = { (default.pat mapper p) with ppat_loc_stack = [] } in
    let mapper = { default with location = (fun _ _ -> Location.none); attributes = (fun _ _ -> []); expr; typ; pat } in
    mapper.structure_item mapper item
  in
  match (prelude, code) with
  | known :: prelude, item :: rest when plain known = plain item -> unrepeated prelude rest
  | _ :: prelude, _ -> unrepeated prelude code
  | [], _ -> code

let problems = Hashtbl.create most_problems

let remembered prelude signature calls =
  let key = (prelude, signature, calls) in
  match Hashtbl.find_opt problems key with
  | Some problem -> problem
  | None ->
      let problem = problem prelude signature calls in
      Hashtbl.add problems key problem;
      problem

(* {1 A request, in a process of its own} *)

type request = { cpu : float; wall : float; gate : bool; problem : problem; is_signed : bool; code : string }

(* [module Candidate : Wanted = struct ... end] *)
let sealed structure =
  let open Ast_helper in
  let name text = Location.mknoloc text in
  let wanted = Mty.ident (name (Longident.Lident "Wanted")) in
  [ Str.module_ (Mb.mk (name (Some "Candidate")) (Mod.constraint_ (Mod.structure structure) wanted)) ]

let name_at_run_time typed =
  match typed.Typedtree.str_items with
  | [ { str_desc = Tstr_module { mb_id = Some id; _ }; _ } ] -> Translmod.toplevel_name id
  | _ -> failwith "one module was sealed"

(* What each call comes to, with a module that holds the function. *)
let report problem say candidate =
  let result call = say (match digest ((Obj.obj call : unit -> Obj.t) ()) with digest -> digest | exception _ -> "-") in
  problem.calls candidate result

(* Types and compiles the code, and hands what it defines over to [finish]. *)
let serve { problem; code; gate; _ } say finish =
  match parse code with
  | exception _ -> say "syntax no"
  | structure -> (
      let structure = unrepeated problem.prelude structure in
      match type_structure problem.env (sealed structure) with
      | exception _ -> say (string_of_int (max 1 (count_errors problem.env structure 10)) ^ " no")
      | typed, _ -> (
          say "0";
          let check lambda =
            if gate then check_lambda lambda;
            say "ok";
            Gc.set { (Gc.get ()) with space_overhead = 80 }
          in
          match
            if gate then check_uses problem.env typed;
            execute ~check typed
          with
          | exception Refused name -> say ("!" ^ String.map (fun c -> if c <= ' ' || c > '~' then '_' else c) name)
          | () -> finish (Toploop.getvalue (name_at_run_time typed))))

let set_timer cpu = ignore (Unix.setitimer Unix.ITIMER_PROF { Unix.it_interval = 0.; it_value = cpu })

(* The shape of the number of a function. *)
let number_shape = { Grove_data.form = Int }

(* Calls the function for another process, until that has no more to ask. It takes one argument at a time, since what it
   does between two of them counts: what waits for another one has a number until the other process forgets it. *)
let called apart candidate ask tell =
  let waiting = Hashtbl.create 16 and newest = ref 0 in
  Hashtbl.add waiting 0 (Obj.field candidate 0, apart.takes);
  let call text =
    let source = { Grove_data.text; at = 0 } in
    let forgotten, number = Grove_data.get_call source in
    (* The last call of a number may itself say that it is forgotten. *)
    let f, takes = Hashtbl.find waiting number in
    List.iter (Hashtbl.remove waiting) forgotten;
    match takes with
    | [] -> (apart.returns, f)
    | shape :: others -> (
        let value = (Obj.obj f : Obj.t -> Obj.t) (Grove_data.get shape source) in
        match others with
        | [] -> (apart.returns, value)
        | _ ->
            incr newest;
            Hashtbl.add waiting !newest (value, others);
            (number_shape, Obj.repr !newest))
  in
  let rec next () =
    match Grove_data.receive ask with
    | exception _ -> ()
    | text ->
        let shape, outcome =
          match call text with
          | shape, value -> (shape, Ok value)
          | exception exn -> (apart.returns, Error exn)
        in
        (* Nothing is said of what is too large. *)
        Grove_data.send tell (try Grove_data.put_outcome apart.exceptions shape outcome with _ -> "");
        next ()
  in
  next ()

(* The code runs in a process of its own, which is asked for what its function returns; tests are judged here, with a library
   that the code cannot reach, and values that are read with care. *)
let judge request apart sink say =
  let ask, to_answer = Unix.pipe ~cloexec:true () in
  let from_answer, tell = Unix.pipe ~cloexec:true () in
  match Unix.fork () with
  | 0 ->
      List.iter Unix.close [ sink; to_answer; from_answer ];
      set_timer request.cpu;
      let finish candidate =
        Grove_data.send tell "ran";
        called apart candidate ask tell
      in
      (try serve request (Grove_data.send tell) finish with _ -> ());
      (try Grove_data.send tell "" with _ -> ());
      Unix._exit 0
  | _ -> (
      List.iter Unix.close [ ask; tell ];
      (* Tests may catch exceptions, but not this. *)
      let receive () = try Grove_data.receive from_answer with _ -> Unix._exit 1 in
      (* A test fails if an argument or a result is too large, whatever it does with the exception. *)
      let is_lost = ref false in
      let lose () =
        is_lost := true;
        raise Grove_data.Unfit
      in
      let forgotten = ref [] in
      let call returns number argument =
        (* What is forgotten from here on, as while the text is made, is for the next call. *)
        let told = !forgotten in
        forgotten := [];
        let text =
          try Grove_data.put_call told number argument
          with _ ->
            forgotten := told @ !forgotten;
            lose ()
        in
        (try Grove_data.send to_answer text with _ -> Unix._exit 1);
        match receive () with
        | "" -> lose ()
        | text -> (
            match Grove_data.get_outcome apart.exceptions returns text with
            | Ok value -> value
            | Error exn -> raise exn
            | exception Stack_overflow -> lose ()
            | exception _ -> Unix._exit 1)
      in
      let rec stub number takes =
        match takes with
        | [] -> call apart.returns number None
        | shape :: others ->
            let apply argument =
              match others with
              | [] -> call apart.returns number (Some (shape, argument))
              | _ -> stub (Obj.obj (call number_shape number (Some (shape, argument)))) others
            in
            if number > 0 then Gc.finalise_last (fun () -> forgotten := number :: !forgotten) apply;
            (* The other process keeps the arguments of what is not forgotten. *)
            if number land 255 = 255 then Gc.minor ();
            Obj.repr apply
      in
      let rec stages () =
        match receive () with
        | "" -> false
        | word ->
            say word;
            if word = "ok" then receive () = "ran" else stages ()
      in
      if stages () then begin
        Gc.set { (Gc.get ()) with space_overhead = 80 };
        let say result =
          say (if !is_lost then "-" else result);
          is_lost := false
        in
        report request.problem say (Obj.repr (ref (stub 0 apart.takes)))
      end)

(* Ends a process and all that it has started. The first process of a space of its own can reach all others. *)
let alone = Unix.getpid () = 1

let rec reap () =
  match Unix.waitpid [] (-1) with
  | _ -> reap ()
  | exception Unix.Unix_error (Unix.EINTR, _, _) -> reap ()
  | exception Unix.Unix_error _ -> ()

let finish child =
  let kill target = try Unix.kill target Sys.sigkill with Unix.Unix_error _ -> () in
  kill (-child);
  kill child;
  if alone then kill (-1);
  reap ()

(* The longest wait for what a process says, in seconds, until the clock is read again, and the longest time between two
   readings that counts: after a longer one the clock was set, or this machine was suspended. *)
let slice = 0.1
let longest = 1.

(* What the process of a request says, which is at most [room] characters, until it ends or time is over. *)
let collect child source wall room =
  let said = Buffer.create 512 in
  let bytes = Bytes.create 4096 in
  let whole = ref false in
  let rec listen left =
    if left > 0. && Buffer.length said < room then begin
      let begun = Unix.gettimeofday () in
      let ready =
        match Unix.select [ source ] [] [] (Float.min left slice) with
        | sources, _, _ -> sources <> []
        | exception Unix.Unix_error (Unix.EINTR, _, _) -> false
      in
      let spent = Unix.gettimeofday () -. begun in
      let left = left -. if spent < 0. || spent > longest then slice else spent in
      if not ready then listen left
      else
        match Unix.read source bytes 0 (Bytes.length bytes) with
        | 0 -> ()
        | n ->
            Buffer.add_subbytes said bytes 0 n;
            whole := Bytes.contains (Bytes.sub bytes 0 n) '\n';
            if not !whole then listen left
    end
  in
  listen wall;
  finish child;
  Unix.close source;
  String.map (fun c -> if c = '\n' then ' ' else c) (Buffer.contents said) ^ if !whole then "." else ""

let nowhere = Unix.openfile "/dev/null" [ Unix.O_RDWR ] 0

let answer request =
  let source, sink = Unix.pipe ~cloexec:true () in
  match Unix.fork () with
  | 0 ->
      ignore (Unix.setsid ());
      List.iter (Unix.dup2 nowhere) [ Unix.stdin; Unix.stdout; Unix.stderr ];
      Unix.close source;
      set_timer request.cpu;
      let say word = ignore (Unix.write_substring sink (" " ^ word) 0 (String.length word + 1)) in
      (try
         match request.problem.apart with
         | _ when request.code = "" ->
             say "0 ok";
             if not request.is_signed then report request.problem say (Obj.repr 0)
         | Some apart -> judge request apart sink say
         | None -> serve request say (report request.problem say)
       with _ -> ());
      ignore (Unix.write_substring sink "\n" 0 1);
      Unix._exit 0
  | child ->
      Unix.close sink;
      collect child source request.wall (65536 + (40 * request.problem.num_calls))

let one_line text = String.concat " " (List.filter (( <> ) "") (String.split_on_char ' ' (String.map (fun c -> if c < ' ' then ' ' else c) text)))

let message exn =
  match Location.error_of_exn exn with
  | Some (`Ok report) ->
      let text = Format.asprintf "%t" report.Location.main.txt in
      one_line (if String.length text > 300 then String.sub text 0 300 ^ "..." else text)
  | _ -> one_line (Printexc.to_string exn)

(* The first call that cannot be compiled, by its number from 1 on, or 0 for what is around them, and the compiler's words. *)
let unusable prelude signature calls exn =
  let fault calls = match problem prelude signature calls with _ -> None | exception exn -> Some (message exn) in
  match fault [] with
  | Some text -> "0 " ^ text
  | None ->
      let rec first i = function
        | [] -> "0 " ^ message exn
        | call :: rest -> ( match fault [ call ] with Some text -> string_of_int i ^ " " ^ text | None -> first (i + 1) rest)
      in
      first 1 calls

(* Answers requests until it remembers enough problems: whether there may be more requests. *)
let rec generation () =
  if Hashtbl.length problems >= most_problems then true
  else
    match input_line stdin with
    | exception End_of_file -> false
    | line -> (
        match String.split_on_char ' ' line with
        | id :: cpu :: wall :: gate :: lengths ->
            let texts = List.map (fun length -> really_input_string stdin (int_of_string length)) lengths in
            let prelude, signature, code, calls =
              match texts with a :: b :: c :: rest -> (a, b, c, rest) | _ -> failwith "request"
            in
            let said =
              match remembered prelude signature calls with
              | problem ->
                  let is_signed = signature <> "" in
                  answer { cpu = float_of_string cpu; wall = float_of_string wall; gate = gate = "gate"; problem; is_signed; code }
              | exception exn -> " unusable " ^ unusable prelude signature calls exn
            in
            print_string (id ^ said ^ "\n");
            flush stdout;
            generation ()
        | _ -> failwith "request")

(* Problems are remembered by a child, which ends when they are enough, and the next begins without any. Requests come
   one at a time, so that nothing of the next has been read by then. *)
let rec generations () =
  match Unix.fork () with
  | 0 -> Unix._exit (if generation () then 0 else 3)
  | child ->
      let rec wait () =
        match Unix.wait () with
        | ended, status -> if ended = child then status else wait ()
        | exception Unix.Unix_error (Unix.EINTR, _, _) -> wait ()
      in
      if wait () = Unix.WEXITED 0 then generations ()

let library_extend = Bytes.extend

(* New memory may still hold texts of tests, with the values that are expected, so that answers must not see it as it is.
   The gate refuses the primitives that return it; the library's functions that do are replaced by ones that clear it. *)
let clear_new_memory () =
  let extend b left right =
    let extended = library_extend b left right in
    let length = Bytes.length extended in
    let source, target = if left < 0 then (-left, 0) else (0, min left length) in
    let copied = max 0 (min (Bytes.length b - source) (length - target)) in
    Bytes.fill extended 0 target '\000';
    Bytes.fill extended (target + copied) (length - target - copied) '\000';
    extended
  in
  let create length = Float.Array.make length 0. in
  let replaced =
    [ (Obj.repr library_extend, Obj.repr extend); (Obj.repr Float.Array.create, Obj.repr create);
      (Obj.repr Float.ArrayLabels.create, Obj.repr create) ]
  in
  let rec replace block =
    for i = 0 to Obj.size block - 1 do
      let field = Obj.field block i in
      match List.assq_opt field replaced with
      | Some safe -> Obj.set_field block i safe
      (* A module in the module. *)
      | None -> if Obj.is_block field && Obj.tag field = 0 then replace field
    done
  in
  let modules = [ "Stdlib__Bytes"; "Stdlib__BytesLabels"; "Stdlib__Float" ] in
  List.iter (fun name -> replace (Obj.repr (Symtable.get_global_value (Ident.create_persistent name)))) modules;
  let bytes = "module Bytes = struct include Bytes let create n = make n '\\000' end" in
  Toploop.toplevel_env := run !Toploop.toplevel_env bytes

let () =
  prepare ();
  clear_new_memory ();
  Gc.compact ();
  (* A process has to copy what it writes to, and marking what is in use writes to all of it. But a heap grows by so many
     hundredths of what is asked for, which must be far less than an answer may have. *)
  Gc.set { (Gc.get ()) with space_overhead = 1_000 };
  generations ()
