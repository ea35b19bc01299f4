"""The words of Wordle: common English words of five letters."""

ANSWERS = tuple(
    """
    about above abuse actor acute admit adopt adult after again agent agree ahead alarm album alert alike alive allow
    alone along alter among anger angle angry apart apple apply arena argue arise armor aside asset avoid awake award
    aware bacon badge badly baker basic basin batch beach beard beast begin being belly below bench berry birth black
    blade blame blank blast blaze bleak blend bless blind block blood bloom blown board boast bonus boost booth bound
    brain brake brand brass brave bread break breed brick bride brief bring broad broke brook broom brown brush build
    built bunch burst buyer cabin cable camel canal candy cargo carry catch cause cease chain chair chalk charm chart
    chase cheap check cheek cheer chess chest chief child chill choir chose civic civil claim clash class clean clear
    clerk click cliff climb clock close cloth cloud clown coach coast cocoa comet comic coral couch could count court
    cover crack craft crane crash crawl crazy cream creek crime crisp cross crowd crown crude cruel crush curve cycle
    daily dairy dance dealt death decay delay dense depth devil diary dirty donor doubt dough dozen draft drain drama
    drank dream dress dried drift drill drink drive drove drown eager eagle early earth eight elbow elder elect empty
    enemy enjoy enter entry equal error event every exact exist extra fable faint fairy faith false fancy fault favor
    feast fence ferry fetch fever fiber field fiery fifth fifty fight final first flame flash fleet flesh float flock
    flood floor flour fluid flute focus force forge forty found frame fraud fresh fried front frost fruit fully funny
    ghost giant given glass gleam globe glory glove grace grade grain grand grant grape graph grasp grass grave great
    greed green greet grief grill groan group grove growl grown guard guess guest guide guilt habit happy harsh haste
    hatch haven heart heavy hedge hello hobby honey honor horse hotel hound house human humor hurry ideal image imply
    index inner input irony issue ivory jelly jewel joint judge juice juicy knife knock known label labor large laser
    later laugh layer learn lease least leave legal lemon level lever light limit linen liver local lodge logic loose
    lover lower loyal lucky lunch lyric magic major maker manor maple march marsh match maybe mayor medal media melon
    mercy merge merit merry metal meter midst might miner minor minus mixed model moist money month moose moral motor
    mount mouse mouth movie muddy music naval nerve never night noble noise north novel nurse nylon oasis occur ocean
    offer often olive onion opera orbit order organ other otter ought ounce outer owner oxide paint panel panic paper
    party pasta patch pause peace peach pearl pedal penny perch phase phone photo piano piece pilot pinch pitch pizza
    place plain plane plant plate plaza plead point polar porch pound power press price pride prime print prior prize
    probe proof proud prove pulse punch pupil puppy purse queen query quest quick quiet quilt quite quota quote radar
    radio raise rally ranch range rapid ratio reach react ready realm rebel refer reign relax reply rider ridge rifle
    right rigid risky rival river roast robin robot rocky rough round route royal rugby ruler rumor rural sadly saint
    salad sauce scale scare scarf scene scent scold scoop scope score scout scrap screw seize sense serve seven shade
    shake shall shame shape share shark sharp sheep sheer sheet shelf shell shift shine shiny shirt shock shoot shore
    short shout shown shrug sight silly since siren sixth sixty skate skill skirt skull slate sleep slice slide slope
    small smart smell smile smoke snack snail snake sneak solar solid solve sorry sound south space spade spare spark
    speak spear speed spell spend spice spicy spike spine spite split spoil spoke spoon sport spray squad stack staff
    stage stain stair stake stale stamp stand stare start state steak steal steam steel steep steer stern stick stiff
    still sting stock stone stood stool store storm story stove straw strip stuck study stuff style sugar suite sunny
    super surge swamp swarm sweat sweep sweet swift swing sword table taken taste teach tempo tempt tenor tense tenth
    thank theft their theme there thick thief thigh thing think third thorn those three threw throw thumb tiger tight
    timer tired title toast today token tooth topic torch total touch tough towel tower toxic trace track trade trail
    train trait trash treat trend trial tribe trick tried troop truck truly trunk trust truth tulip tunic twice twist
    ultra uncle under union unite unity until upper upset urban usage usual vague valid value valve vapor vault verse
    video visit vital vivid vocal voice voter wagon waist waste watch water weary weave weigh weird whale wheat wheel
    where which while white whole whose widen widow width witch woman world worry worse worst worth would wound wreck
    wrist write wrong wrote yacht yield young youth zebra
    """.split()  # noqa: SIM905 - a word a line would be a long file
)
"""Words that may have to be found, in alphabetical order."""

GUESSES = frozenset(ANSWERS).union(
    """
    abbey abbot abide abode adapt adept adobe adorn aisle algae alien align alley aloft aloof amber amend ample amuse
    angel ankle annex apron aptly arbor ardor arrow ashen atlas atoll attic audio audit aunts avail avert await axiom
    bagel baked balmy banjo barge baron baton bears bells birch birds bison blink bliss bloat blunt blurb blush boats
    bones books boots borax bored bosom boxer braid brawl brawn bribe brine brink brisk broil brute buggy bugle bulge
    bulky bully burnt bushy cacao cache cadet camps canoe canon caper cards carol carve caste cater cedar cello chant
    chaos chasm cheat chick chide chime chirp choke chord chore chunk churn cider cigar cinch clamp clang clasp cleft
    clink cloak clone cobra coils coins colon color conch condo copse corny costs covet cower crank crate crave creak
    creed creep crepe crest cried crock crook croon crumb crypt cubic cumin curly curry daisy debit debut decoy decry
    deity delta demon denim depot derby deter detox dimly diner dingo disco ditch ditto diver dizzy dodge doing dolls
    doors dowry drape drawl drawn dread droll drone droop druid dryer ducks dusky dusty dwarf dwell eaten ebony edict
    eerie eject elate elegy elite elope elude email ember emote enact endow ensue envoy epoch equip erase erect erode
    erupt essay ether ethic evade evict evoke exalt excel exert exile expel extol exult facet farce farms fatal fauna
    feign feint felon femur feral fiend filet films filth finch fishy fjord flail flair flake flank flare flask fleck
    flick fling flint flirt flora floss flown fluff flung flush foamy foggy folly forte forum foxes foyer frail frank
    freak freed friar frock frond froze fudge fungi fussy fuzzy gamer gamma gases gauge gaunt gauze gavel gecko genie
    genre germs girth gland glare glaze glide glint gloat gloom gloss gnome goals goose gorge gouge gourd graft gravy
    graze grime grind gripe groom grope gross gruel gruff grunt guava guild guile guise gusto gusty hairy halve handy
    hardy hasty haunt havoc hazel heady heave hefty heron hinge hippo hitch hoard hoist holly homer hones horde hover
    humid humus hunch husky hyena hymns icing idiom idler igloo inept inert infer ingot inlet irate itchy jaunt jazzy
    jetty joker jolly joust jumbo jumps karma kayak kebab khaki kiosk kites knack knead kneel knelt knoll koala laden
    ladle lance lapel larva lasso latch lathe leach leafy leaky leapt leash ledge leech lefty libel liken lilac limbo
    liner lingo lions llama loamy lobby locus lofty loner loopy lorry lotus louse lousy lucid lunar lunge lurch lurid
    lusty lymph macaw macro madam madly maize mango mania manly mason mauve maxim mealy meaty medic midge mimic mince
    mirth miser misty mocha modem mogul molar moldy moody moped mossy motel motif motto moult mound mourn mover mower
    mucus mulch mummy mural murky mushy musty nacho naive nanny nasal nasty navel needy neigh newer newly niche niece
    ninja ninth notch nudge oaken oases octet oddly olden omega onset optic orate outdo ovary ovate overt owing oxbow
    ozone paddy pagan palsy panda pansy papal parka parry parse paste pasty patio payee peaks pecan penal perky pesky
    petal petty phony piggy pinto pious piper pique pivot pixel plaid plait plank plows pluck plumb plume plump plush
    poach poems poise poker polka poppy poser posse pouch pouty prank prawn preen prism privy prone prong prose prowl
    proxy prude prune psalm pulpy puree purge quack quail quake qualm quark quart quash quasi quell quill quirk rabbi
    rabid racer raspy raven rayon razor rearm recap recur reedy regal rehab relay relic remit renew repay repel resin
    retch retro retry revel revue rhino rhyme rinse ripen riser rivet roach robes rodeo rogue roomy roost rotor rouge
    rouse rowdy ruddy rumba rusty saber sable salon salsa salty salve sandy satin sauna saute savor savvy scald scalp
    scaly scamp scant scarp scary scion scoff scorn scour scowl scram scrub sedan seeds seedy segue sepia setup shack
    shady shaft shaky shale shank shard shave shawl shear sheen shied shoal shone shook shorn shove showy shred shrew
    shrub shuck shunt siege sieve sigma silky sinew sinus skied skiff skimp skunk slack slain slang slant slash sleek
    sleet slept slick slime slimy sling slink sloop slosh sloth slump slung slurp slush smack smash smear smelt smirk
    smite smith smock smoky snare snarl sneer snide sniff snipe snoop snore snort snout snowy snuck snuff soapy sober
    soggy sonar sonic sooth sooty spasm spawn speck spelt spent spiel spill spiny spire splat spoof spool spore spout
    spree sprig spurn spurt squat squid stalk stall stank stark stash stave stead steed stein stilt stink stint stoic
    stoke stole stomp stony stoop stork stout strap stray strum strut stump stung stunt suave suede sulky sully surly
    sushi swear swell swept swine swirl swish swoon swoop swore swung syrup tabby taboo tacit taffy taint tally talon
    tango tangy taper tapir tardy tarot taunt tawny teary tease teeth tepid terse testy thaws theta throb thump thyme
    tiara tibia tidal tilde timid tipsy titan tonic topaz totem toxin trawl tread triad trice trite troll trope trout
    truce truss tryst tuber tulle tumor tuned tunes turbo tutor twang tweak tweed twine twirl udder ulcer umber umbra
    uncut undue unfed unfit unlit unzip upend usher usurp utter vegan veins venom venue vicar vigil vigor villa vinyl
    viola viper viral virus visor vista vixen vodka vogue vouch vowel wacky wafer waged waltz waver waxen wedge weedy
    whack wharf whiff whine whirl whisk wield wimpy wince winch windy wiser wispy witty woken woody wooer woozy wordy
    wrack wrath wreak wring wryly yearn yeast yodel yummy zesty
    """.split()  # noqa: SIM905 - a word a line would be a long file
)
"""Words that may be guessed."""
