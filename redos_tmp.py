import re, sys, time, signal, importlib, pkgutil
import chopper_core, chopper_tui
def mods(pkg):
    for m in pkgutil.walk_packages(pkg.__path__, pkg.__name__+"."):
        if m.name.endswith("__main__"): continue
        try: yield importlib.import_module(m.name)
        except Exception as e: print("skip", m.name, e)
pats={}
def collect(v, where, depth=0):
    if isinstance(v, re.Pattern): pats.setdefault((v.pattern, v.flags), (v, where))
    elif depth<4 and isinstance(v,(list,tuple,set,frozenset)):
        for x in v: collect(x, where, depth+1)
    elif depth<4 and isinstance(v,dict):
        for x in v.items(): collect(x, where, depth+1)
    elif depth<3 and isinstance(getattr(type(v),"__struct_fields__",None),tuple):
        for f in type(v).__struct_fields__:
            try: collect(getattr(v,f), where, depth+1)
            except Exception: pass
for pkg in (chopper_core, chopper_tui):
    for m in mods(pkg):
        for k,v in vars(m).items():
            if not k.startswith("__"): collect(v, f"{m.__name__}.{k}")
print(len(pats), "patterns")
class T(Exception): pass
def alarm(*a): raise T
signal.signal(signal.SIGALRM, alarm)
N=40000
def seeds(p):
    toks=[" ","\t","\n","a","A","1","0","_",".","-",",",":","::",";","\"","'","\\","/","(",")","<",">","[","]","{","}","*","&","=","#","@","+","e","x","1.","a ","a,","a.","a_","1 ","1,","1_","-1","a1"," a","()","<>","<a","a<","(a","ab","aa_","\\\\","\"a\"", "\\\"", ", ", ": ", "=1", "a=", "a=1,"]
    lits=set(re.findall(r"[A-Za-z_]{2,}", p if isinstance(p,str) else p.decode("latin1")))
    return toks+list(lits)[:12]
bad=[]
for (p,f),(pat,where) in pats.items():
    isb=isinstance(p,bytes)
    lits=[""]+sorted(set(re.findall(r"[A-Za-z_]{3,}(?:[ :,=/]+)?", p if not isb else p.decode("latin1"))))[:6]
    worst=(0,"","")
    for pre in lits:
      for t in seeds(p):
        for suf in ("\x00","!"):
            s=pre+(t*(N//len(t)))+suf
            if isb: s=s.encode()
            for fn in ("search","fullmatch"):
                t0=time.process_time()
                signal.setitimer(signal.ITIMER_REAL, 3)
                try: getattr(pat,fn)(s)
                except T: pass
                finally: signal.setitimer(signal.ITIMER_REAL,0)
                dt=time.process_time()-t0
                if dt>worst[0]: worst=(dt,pre,t,suf,fn)
            if worst[0]>0.3: break
        if worst[0]>0.3: break
      if worst[0]>0.3: break
    if worst[0]>0.05: print(f"{worst[0]:.2f}s {where} {worst[1:]} {str(p)[:120]}", flush=True)
